"""A `DemoResult` and its pictures in, the `Report` that becomes `report.html` out."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from phpq.data import Dataset
from phpq.evaluation import (
    Figure,
    Headline,
    Note,
    Report,
    RetrievalScores,
    Section,
    Settings,
    Table,
    plot_precision_at,
    plot_precision_recall,
)
from phpq.evaluation.page import health_table

if TYPE_CHECKING:
    from phpq.demo.run import DemoResult

_CUTOFFS = (1, 10, 50)
_FAMILY = 4  # species that look alike
_SHOWN = 7  # birds of each in the picture
_GAP = 6  # pixels


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of the page, each a PNG.

    Attributes:
        family: Look-alike species, a row each.
        precision_at: Curves of all ways to search.
        precision_recall: The same.
        hits: What a search of the longest code brings back.
        training: The course of each run, by code length.
    """

    family: bytes
    precision_at: bytes
    precision_recall: bytes
    hits: bytes
    training: Mapping[int, bytes]


def build_page(result: DemoResult, pictures: Pictures) -> Report:
    """Lay out what the demo measured."""
    sections = (
        _task(result, pictures),
        _retrieval(result, pictures),
        _hits(result, pictures),
        _training(result, pictures),
        _health(result),
        _speed(result),
        _next(result),
        _settings(result),
    )
    return Report(
        title="phpq demo: finding look-alike birds in a few bytes an image",
        summary=_summary(result),
        headlines=_headlines(result),
        sections=sections,
    )


def draw_family(dataset: Dataset) -> bytes:
    """Draw the first four species, a row each: one family, told apart by one small mark."""
    train = dataset.train
    rows = [
        [index for index, of in enumerate(train.labels) if of == label][:_SHOWN]
        for label in range(min(_FAMILY, len(dataset.class_names)))
    ]
    side = train.read(0).width + _GAP
    size = (max(map(len, rows)) * side - _GAP, len(rows) * side - _GAP)
    canvas = Image.new("RGB", size, "white")
    for number, row in enumerate(rows):
        for column, index in enumerate(row):
            canvas.paste(train.read(index), (column * side, number * side))
    buffer = io.BytesIO()
    canvas.save(buffer, format="PNG")
    return buffer.getvalue()


def draw_curves(result: DemoResult) -> tuple[bytes, bytes]:
    """Plot precision at N, and precision against recall, of all ways to search."""
    scores = {name: scores for name, scores in _ways(result) if name not in _shorter_float(result)}
    return plot_precision_at(scores), plot_precision_recall(scores)


def _ways(result: DemoResult) -> Iterator[tuple[str, RetrievalScores]]:
    """Yield every way to search, the learned codes first and longer codes first."""
    ordered = sorted(result.evaluations.items(), reverse=True)
    for bits, one in ordered:
        yield f"PHPQ, {bits} bits", one.codes
    for bits, one in ordered:
        yield f"post-hoc PQ, {bits} bits", one.posthoc_pq
    for bits, one in ordered:
        yield f"float search, {bits}-bit model", one.float_search


def _shorter_float(result: DemoResult) -> set[str]:
    # Two curves of float search would only hide each other; the table has both.
    shorter = sorted(result.evaluations)[:-1]
    return {f"float search, {bits}-bit model" for bits in shorter}


def _summary(result: DemoResult) -> str:
    recipe, codes = result.recipe, result.longest.codes
    text = (
        f"{recipe.species} species of drawn birds, {codes.gallery:,} images to learn from and to "
        f"search in, {codes.queries:,} others as queries. Each network learned from scratch, on "
        f"one thread of a CPU; drawing, learning and measuring took {result.seconds:.0f} seconds."
    )
    if result.quick:
        return f"A QUICK RUN: it shows that everything works, and its figures say nothing. {text}"
    return text


def _headlines(result: DemoResult) -> tuple[Headline, ...]:
    one = result.longest
    learned = [
        Headline(
            f"MAP at {bits} bits", f"{of.codes.map_percent:.1f}", f"{bits // 8} bytes an image"
        )
        for bits, of in sorted(result.evaluations.items(), reverse=True)
    ]
    return (
        *learned,
        Headline(
            f"post-hoc PQ, {one.bits} bits",
            f"{one.posthoc_pq.map_percent:.1f}",
            "MAP on the same embeddings",
        ),
        Headline(
            "float search",
            f"{one.float_search.map_percent:.1f}",
            f"MAP, {one.float_search.bits // 8:,} bytes an image",
        ),
    )


def _task(result: DemoResult, pictures: Pictures) -> Section:
    names = ", ".join(
        name.partition(".")[2].replace("_", " ") for name in result.class_names[:_FAMILY]
    )
    return Section(
        "The task",
        (
            Figure(
                pictures.family,
                alt="Four rows of drawn birds, one species a row",
                caption=f"One species a row, top to bottom: {names}. Seen as the network sees "
                f"them, at {result.recipe.size} x {result.recipe.size} pixels.",
                wide=True,
            ),
        ),
        lead="Species come in families of four that differ from the first of them in one small "
        "mark: an eye ring, a wing bar, the beak, the streaks of the breast. Pose, coat, "
        "background, light and leaves in the way change with every image and mean nothing.",
    )


def _retrieval(result: DemoResult, pictures: Pictures) -> Section:
    ways = list(_ways(result))
    cutoffs = [n for n in _CUTOFFS if n in ways[0][1].precision_at]
    table = Table(
        columns=("search over", "bytes an image", "MAP", *(f"P@{n}" for n in cutoffs)),
        rows=tuple(
            (
                name,
                -(-scores.bits // 8),
                scores.map_percent,
                *(100 * scores.precision_at[n] for n in cutoffs),
            )
            for name, scores in ways
        ),
        caption="In per cent. MAP is over the whole gallery and does not depend on the order of "
        "images with equal scores; P@N is the share of the query's species among the first N.",
        strong_row=0,
    )
    one = result.longest
    gain = one.codes.map_percent - one.posthoc_pq.map_percent
    return Section(
        "Retrieval",
        (
            table,
            Figure(pictures.precision_at, alt="Precision of the first N hits against N"),
            Figure(pictures.precision_recall, alt="Precision against recall"),
            Note(
                (
                    f"At {one.bits} bits the codes that were learned with the network are "
                    f"{abs(gain):.1f} points of MAP {'above' if gain >= 0 else 'below'} a product "
                    "quantizer that k-means (faiss) fitted to the same embeddings of the gallery "
                    "afterwards.",
                    "The gallery is the training split, as in the field's benchmarks. So its codes "
                    "carry what the labels taught, and can rank better than the float embeddings "
                    "they were made from.",
                    f"A species has {result.recipe.images} images in the gallery, so P@N must fall "
                    "beyond that. Each run has one start; a few points between runs are chance.",
                    "The demo's settings were tried out on the birds of seeds 0 to 2, queries "
                    "included, so there they flatter a little; another --seed draws fresh ones.",
                )
            ),
        ),
        lead="Every row of one code length searches the same embeddings of the same model.",
    )


def _hits(result: DemoResult, pictures: Pictures) -> Section:
    return Section(
        "What a search brings back",
        (
            Figure(
                pictures.hits,
                alt="Queries, each with its first ten hits marked right or wrong",
                caption="Green with a tick: the species of the query. Red with a cross: another.",
                wide=True,
            ),
        ),
        lead=f"The first query of some species, spread evenly over all of them, and its ten best "
        f"hits by {result.longest.bits}-bit codes; chosen before the result was known.",
    )


def _training(result: DemoResult, pictures: Pictures) -> Section:
    rows = []
    for bits, one in sorted(result.evaluations.items(), reverse=True):
        assert one.epochs is not None  # the last epoch of a run is always evaluated
        rows.append((f"{bits} bits", one.epochs_trained, one.epochs.last.map, one.epochs.best.map))
    table = Table(
        columns=("run", "epochs", "MAP, last epoch", "MAP, best epoch"),
        rows=tuple(rows),
        caption="All figures of this page are of the last epoch. The best one is picked by the "
        "queries themselves, so it flatters.",
    )
    figures = tuple(
        Figure(
            picture,
            alt=f"Losses, MAP, learning rate and use of the codebooks while learning {bits} bits",
            caption=f"{bits} bits.",
            wide=True,
        )
        for bits, picture in sorted(pictures.training.items(), reverse=True)
    )
    return Section(
        "How they learned",
        (table, *figures),
        lead="Two separate runs from scratch, backbone, codebooks and all, each end to end.",
    )


def _health(result: DemoResult) -> Section:
    table = health_table(
        _ways(result),
        caption=f"Of {result.longest.codes.gallery:,} gallery images. Entropy is the mean over the "
        f"codebooks: codes that name one of {result.recipe.species} species and tell nothing else "
        f"have {math.log2(result.recipe.species):.2f}; near zero, a codebook has collapsed.",
    )
    return Section(
        "Use of the codebooks",
        (table,),
        lead="Codes learned from labels fall on few values: images of one species share them.",
    )


def _speed(result: DemoResult) -> Section:
    rows = []
    for bits, one in sorted(result.evaluations.items(), reverse=True):
        timing = one.timing
        codes, floats = 1000 * timing.code_seconds, 1000 * timing.float_seconds
        rows.append((f"PHPQ, {bits} bits", codes, floats, timing.ratio))
    timing = result.longest.timing
    table = Table(
        columns=("search over", "ms", "float search, ms", "times as fast"),
        rows=tuple(rows),
        caption=f"{timing.queries:,} queries over {timing.gallery:,} images, {timing.top_k} hits "
        f"each, median of {timing.repeats} repeats, in turns with a float search. Embedding the "
        "queries is left out.",
        strong_row=0,
    )
    if timing.ratio >= 1:
        return Section("Speed", (table,))
    note = Note(
        (
            f"{timing.gallery:,} images are too small a gallery for codes to be faster: one matrix "
            f"product is hard to beat there. They take {result.longest.bits // 8} bytes an image "
            f"instead of {result.longest.float_search.bits // 8:,} all the same.",
        )
    )
    return Section("Speed", (table, note))


def _next(result: DemoResult) -> Section:
    return Section(
        "What to try next",
        (Table(columns=("command", "what it does"), rows=result.commands()),),
        lead="From the folder in which the demo was started:",
    )


def _settings(result: DemoResult) -> Section:
    facts = (
        ("data set", result.source),
        ("seed", str(result.seed)),
        ("quick", str(result.quick)),
    )
    options = tuple(
        (f"{stage}.{name}", str(value))
        for stage, fields in result.longest.settings.items()
        for name, value in fields.items()
    )
    title = f"Config of the {result.longest.bits}-bit run; the other differs in its codebooks only"
    return Section("Settings", (Settings("Demo", facts), Settings(title, options)))
