"""A `DemoResult` in, the content of its `report.html` out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from phpq.data import Dataset
from phpq.evaluation.metrics import RetrievalScores
from phpq.evaluation.page import config_block, health_table, hits_figure, score_figures, score_table
from phpq.report.blocks import Figure, Headline, Note, Report, Section, Settings, Table
from phpq.report.pictures import draw_grid

if TYPE_CHECKING:
    from phpq.demo.run import DemoResult

_CUTOFFS = (1, 10, 50)
_FAMILY = 4  # species that look alike
_SHOWN = 7  # birds of each in the picture


def build_page(
    result: DemoResult, *, family: bytes, hits: bytes, training: Mapping[int, bytes]
) -> Report:
    """Lay out what the demo measured, with its pictures as PNG.

    They are `draw_family`, what a search by the longest code brings back, and the course of each
    run by code length.
    """
    made = {"data set": result.source, "seed": str(result.seed), "quick": str(result.quick)}
    demo, bits = Settings("Demo", tuple(made.items())), result.longest.bits
    config = f"Config of the {bits}-bit run; the other differs in its codebooks only"
    return Report(
        title="phpq demo: finding look-alike birds in a few bytes per image",
        summary=_summary(result),
        headlines=_headlines(result),
        sections=(
            _task(result, family),
            _retrieval(result),
            Section(
                "What a search brings back",
                (hits_figure(hits, "species"),),
                lead="The first query of some species, spread evenly over all of them, and its ten "
                f"best hits by {bits}-bit codes; chosen before the result was known.",
            ),
            _training(result, training),
            _health(result),
            _speed(result),
            Section(
                "What to try next",
                (Table(columns=("command", "what it does"), rows=result.commands()),),
                lead="From the folder in which the demo was started:",
            ),
            Section("Settings", (demo, config_block(config, result.longest.settings))),
        ),
    )


def draw_family(dataset: Dataset) -> bytes:
    """Draw the first four species, one per row: one family, told apart by one small mark."""
    train = dataset.train
    return draw_grid(
        [
            [train.read(int(index)) for index in (train.labels == label).nonzero()[0][:_SHOWN]]
            for label in range(min(_FAMILY, len(dataset.class_names)))
        ]
    )


def _ways(result: DemoResult) -> dict[str, RetrievalScores]:
    """Return every way to search, the learned codes first and longer codes first."""
    ways = {f"PHPQ, {one.bits} bits": one.codes for one in result.longest_first}
    ways |= {f"post-hoc PQ, {one.bits} bits": one.posthoc_pq for one in result.longest_first}
    ways |= {
        f"float against soft reconstructions, {one.bits}-bit model": one.soft
        for one in result.longest_first
        if one.soft is not None
    }
    return ways | {
        f"float search, {one.bits}-bit model": one.float_search for one in result.longest_first
    }


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
    learned = {
        f"MAP at {one.bits} bits": (one.codes, f"{one.bits // 8} bytes per image")
        for one in result.longest_first
    }
    fitted, exhaustive = result.longest.posthoc_pq, result.longest.float_search
    ways = learned | {
        f"post-hoc PQ, {fitted.bits} bits": (fitted, "MAP on the same embeddings"),
        "float search": (exhaustive, f"MAP, {exhaustive.bytes_per_image:,} bytes per image"),
    }
    return tuple(
        Headline(label, f"{scores.map_percent:.1f}", note) for label, (scores, note) in ways.items()
    )


def _task(result: DemoResult, family: bytes) -> Section:
    names = ", ".join(
        name.partition(".")[2].replace("_", " ") for name in result.class_names[:_FAMILY]
    )
    size, alt = result.recipe.size, "Four rows of drawn birds, one species per row"
    caption = (
        f"One species per row, top to bottom: {names}. Seen as the network sees them, at "
        f"{size} x {size} pixels."
    )
    return Section(
        "The task",
        (Figure(family, alt=alt, caption=caption, wide=True),),
        lead="Species come in families of four that differ from the first of them in one small "
        "mark: an eye ring, a wing bar, the beak, the streaks of the breast. Pose, coat, "
        "background, light and leaves in the way change with every image and mean nothing.",
    )


def _retrieval(result: DemoResult) -> Section:
    ways, one = _ways(result), result.longest
    # Two curves of float search would only hide each other; the table has both.
    drawn = {
        name: scores
        for name, scores in ways.items()
        if scores.method not in ("float", "soft") or scores is one.float_search
    }
    gain = one.codes.map_percent - one.posthoc_pq.map_percent
    note = Note(
        (
            f"At {one.bits} bits the codes that were learned with the network are "
            f"{abs(gain):.1f} points of MAP {'above' if gain >= 0 else 'below'} a product "
            "quantizer that k-means fitted to the same embeddings of the gallery afterwards, with "
            f"{2 ** (one.posthoc_pq.bits // (one.bits // 8))} codewords per byte, the best of "
            "several for images of the gallery that ask the others.",
            "The gallery is the training split, as in the field's benchmarks. So its codes "
            "carry what the labels taught, and can rank better than the float embeddings "
            "they were made from.",
            f"A species has {result.recipe.images} images in the gallery, so P@N must fall "
            "beyond that. Each run has one start; a few points between runs are chance.",
            "The demo's settings were tried out on the birds of seeds 0 to 2, queries "
            "included, so there they flatter a little; another --seed draws fresh ones.",
        )
    )
    return Section(
        "Retrieval",
        (score_table(ways, cutoffs=_CUTOFFS), *score_figures(drawn), note),
        lead="Every row of one code length searches the same embeddings of the same model.",
    )


def _training(result: DemoResult, pictures: Mapping[int, bytes]) -> Section:
    rows = []
    for one in result.longest_first:
        assert one.epochs is not None  # the last epoch of a run is always evaluated
        last, best = one.epochs.last.map, one.epochs.best.map
        rows.append((f"{one.bits} bits", one.epochs_trained, last, best))
    table = Table(
        ("run", "epochs", "MAP, last epoch", "MAP, best epoch"),
        tuple(rows),
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
        for bits, picture in sorted(pictures.items(), reverse=True)
    )
    return Section(
        "How they learned",
        (table, *figures),
        lead="Two separate runs from scratch, backbone, codebooks and all, each end to end.",
    )


def _health(result: DemoResult) -> Section:
    caption = (
        f"Of {result.longest.codes.gallery:,} gallery images. Entropy is the mean over the "
        f"codebooks: codes that name one of {result.recipe.species} species and tell nothing else "
        f"have {math.log2(result.recipe.species):.2f}; near zero, a codebook has collapsed."
    )
    lead = "Codes learned from labels fall on few values: images of one species share them."
    table = health_table(_ways(result), caption=caption)
    return Section("Use of the codebooks", (table,), lead=lead)


def _speed(result: DemoResult) -> Section:
    one, timing = result.longest, result.longest.timing
    table = Table(
        columns=("search over", "ms", "float search, ms", "times as fast"),
        rows=tuple(
            (f"PHPQ, {bits} bits", 1000 * t.code_seconds, 1000 * t.float_seconds, t.ratio)
            for bits, t in ((each.bits, each.timing) for each in result.longest_first)
        ),
        caption=f"{timing.queries:,} queries over {timing.gallery:,} images, {timing.top_k} hits "
        f"each, median of {timing.repeats} repeats, in turns with a float search. Embedding the "
        "queries is left out.",
        strong_row=0,
    )
    note = Note(
        (
            f"{timing.gallery:,} images are too small a gallery for codes to be faster: one matrix "
            f"product is hard to beat there. They take {one.bits // 8} bytes per image instead of "
            f"{one.float_search.bytes_per_image:,} all the same.",
        )
    )
    return Section("Speed", (table,) if timing.ratio >= 1 else (table, note))
