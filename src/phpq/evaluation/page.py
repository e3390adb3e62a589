"""An `Evaluation` in, its `report.html` and pictures out.

Tables and figures that other pages show too are public functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phpq.evaluation.metrics import RetrievalScores
from phpq.evaluation.search import SearchScore
from phpq.evaluation.unseen import PROTOCOLS, UNSEEN, UnseenScores
from phpq.files import write_bytes
from phpq.report.blocks import (
    Block,
    Figure,
    Headline,
    Note,
    Report,
    Section,
    Settings,
    Table,
    write_report,
)
from phpq.report.pictures import plot_curves

if TYPE_CHECKING:
    from phpq.evaluation.run import Evaluation

Ways = Mapping[str, RetrievalScores]  # scores by the name of what was searched

REPORT = "report.html"
CUTOFFS = (1, 10, 100)  # of P@N in tables
_NAMED_IMAGES = 20  # most unreadable images that are named one by one


def write_page(evaluation: Evaluation, folder: Path, *, top10: bytes) -> None:
    """Write the page and its pictures to a folder; `top10` is a PNG of queries and their hits."""
    curves = score_figures(
        {
            name if scores is evaluation.float_search else f"{name}, {scores.bits} bits": scores
            for name, scores in evaluation.ways.items()
        }
    )
    pictures = (curves[0].image, curves[1].image, top10)
    for name, image in zip(("precision_at", "precision_recall", "top10"), pictures, strict=True):
        write_bytes(folder / f"{name}.png", image)
    write_report(folder / REPORT, build_page(evaluation, curves=curves, top10=top10))


def build_page(evaluation: Evaluation, *, curves: Sequence[Figure], top10: bytes) -> Report:
    """Lay out what was measured; `curves` from `score_figures`, `top10` a PNG."""
    health = (
        f"Of {evaluation.codes.gallery:,} gallery images. Entropy is the mean over the codebooks; "
        "near zero, the codebooks have collapsed. Images of one class may well share a code."
    )
    about = "The embeddings of this method are its codes: search without codes finds the same."
    if not evaluation.lossless:
        about = "Ways to search the same embeddings: by the learned codes, and without codes."
    if evaluation.pq is not None:
        books = evaluation.settings["quantizer"]["num_codebooks"]
        about += (
            " Soft reconstructions are what training makes of the gallery's embeddings: all that "
            "the codebooks know, without the loss of a code. Post-hoc PQ is a product quantizer "
            f"fitted to the gallery afterwards, with {2 ** (evaluation.pq.bits // books)} "
            "codewords per codebook, chosen by images of the gallery that ask the others."
        )
    if evaluation.own:
        about += " Then codebooks that the gallery owns, over the general embedding."
    facts = (
        ("data set", evaluation.source or evaluation.dataset),
        ("epochs trained", str(evaluation.epochs_trained)),
        ("fingerprint of the weights", evaluation.fingerprint),
    )
    settings = (Settings("Model and data", facts), config_block("Config", evaluation.settings))
    sections = [
        Section("Retrieval", (score_table(evaluation.ways), *curves), lead=about),
        Section(
            "What a search brings back",
            (hits_figure(top10, "class"),),
            lead="One query of each of a few classes, spread evenly over all of them and chosen "
            "before the result was known.",
        ),
        *_unseen_classes(evaluation.unseen),
        _speed(evaluation),
        *_epochs(evaluation),
        Section("Use of the codebooks", (health_table(evaluation.ways, caption=health),)),
        *_skipped(evaluation),
        Section("Settings", settings),
    ]
    return Report(
        title=f"{evaluation.dataset}: search with {evaluation.bits}-bit codes",
        summary=_summary(evaluation),
        headlines=_headlines(evaluation),
        sections=tuple(sections),
    )


def score_cells(scores: RetrievalScores, cutoffs: Sequence[int] = CUTOFFS) -> dict[str, float]:
    """Return the cells of one search, in per cent, by heading."""
    cells = {"MAP": scores.map_percent}
    for n in cutoffs:
        if n in scores.precision_at:
            cells[f"P@{n}"] = 100 * scores.precision_at[n]
        if n == 1:
            added, by_float = scores.precision_at_1_served, scores.precision_at_1_by_float
            cells["P@1 as served"] = 100 * (added if by_float is None else by_float)
            cells["P@1 as added"] = 100 * added
    return cells


def score_table(ways: Ways, *, cutoffs: Sequence[int] = CUTOFFS) -> Table:
    """Show the scores of some searches, the first of them emphasised."""
    headings = score_cells(next(iter(ways.values())), cutoffs)
    return Table(
        columns=("search over", "bytes per image", *headings),
        rows=tuple(
            (name, scores.bytes_per_image, *score_cells(scores, cutoffs).values())
            for name, scores in ways.items()
        ),
        caption="In per cent. MAP is over the whole gallery; P@N is the share of relevant images "
        "among the first N. Both are means over all orders of images with equal scores. P@1 as "
        "served is what a user sees: of equal scores, the better one by kept embeddings comes "
        "first. P@1 as added is what is seen where none are kept, and the image that was added "
        "first comes first.",
        strong_row=0,
    )


def kind_cells(score: SearchScore) -> dict[str, float | None]:
    """Return the cells of a score of unseen classes, in per cent, by heading."""
    names = {"R@1": "r1", "R@10": "r10", "MAP@R": "map_r", "MAP": "map", "named": "accuracy"}
    return {heading: score.values.get(name) for heading, name in names.items()}


def kind_name(score: SearchScore) -> str:
    """Describe a search: its name, bytes of code, with or without labels."""
    size = "" if score.way.endswith("float") else f", {score.bits // 8} bytes"
    return f"{score.way}{size}, {score.labels} labels"


def kinds_table(scores: Sequence[SearchScore], *, caption: str) -> Table:
    """Show scores of unseen classes, those of one protocol together."""
    return Table(
        columns=("protocol", "search over", "bytes per image", *kind_cells(scores[0])),
        rows=tuple(
            (score.protocol, kind_name(score), score.bytes_per_image, *kind_cells(score).values())
            for score in scores
        ),
        caption=caption,
    )


def score_figures(ways: Ways) -> tuple[Figure, Figure]:
    """Draw precision of the first N hits, and precision against recall."""
    by_rank = {
        name: {float(n): 100 * value for n, value in scores.precision_at.items()}
        for name, scores in ways.items()
    }
    title, labels = "Precision of the first N hits", ("N", "precision, %")
    precision_at = plot_curves(by_rank, title=title, labels=labels, strong=next(iter(by_rank)))
    by_recall = {
        f"{name}  (MAP {scores.map_percent:.1f})": {
            100 * recall: 100 * value for recall, value in scores.pr_curve.items()
        }
        for name, scores in ways.items()
    }
    precision_recall = plot_curves(
        by_recall,
        title="Precision and recall",
        labels=("recall, %", "precision, %"),
        strong=next(iter(by_recall)),
        x_axis="linear",
        y_range=(-2, 102),
    )
    return (
        Figure(precision_at, alt="Precision of the first N hits against N"),
        Figure(precision_recall, alt="Precision against recall"),
    )


def hits_figure(picture: bytes, kind: str) -> Figure:
    """Show queries with their hits; `kind` is what a query shares with a right hit."""
    return Figure(
        picture,
        alt="Queries, each with its first ten hits marked right or wrong",
        caption=f"Green with a tick: the {kind} of the query. Red with a cross: another.",
        wide=True,
    )


def health_table(ways: Ways, *, caption: str) -> Table:
    """Show how each search by codes uses its codebooks."""
    rows = tuple(
        (name, h.distinct_codes, h.dead_total, h.mean_entropy_bits, 100 * h.largest_share)
        for name, h in ((name, scores.health) for name, scores in ways.items())
        if h is not None
    )
    columns = ("codes", "distinct", "dead codewords", "entropy, bits", "largest group, %")
    return Table(columns=columns, rows=rows, caption=caption)


def config_block(title: str, settings: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Show a resolved config, as plain data."""
    options = (
        (f"{stage}.{name}", str(value))
        for stage, fields in settings.items()
        for name, value in fields.items()
    )
    return Settings(title, tuple(options))


def _summary(evaluation: Evaluation) -> str:
    codes = evaluation.codes
    text = (
        f"{codes.queries:,} queries against a gallery of {codes.gallery:,} images; an image of the "
        f"query's class is relevant. Each gallery image is kept as a code of {evaluation.bits} "
        f"bits, {_bytes(codes)}."
    )
    if evaluation.held_out:
        text += (
            f" The queries are {evaluation.held_out} images per class held out of the training "
            "split; the test split was not looked at."
        )
    if codes.excluded:
        text += f" {codes.excluded:,} queries have no image of their class in the gallery."
    lowest, highest = (f"{value:.2f}" for value in codes.map_range_percent)
    if lowest != highest:
        text += (
            " MAP is its mean over all orders of images that score the same; in the worst order it "
            f"would be {lowest}, in the best {highest}."
        )
    return text


def _headlines(evaluation: Evaluation) -> tuple[Headline, ...]:
    timing, exhaustive, fitted = evaluation.timing, evaluation.float_search, evaluation.pq
    ways = {f"MAP at {evaluation.bits} bits": (evaluation.codes, "whole gallery, per cent")}
    if not evaluation.lossless:
        ways["float search"] = (exhaustive, f"MAP, {_bytes(exhaustive)}")
    if fitted is not None and not evaluation.lossless:
        ways[f"post-hoc PQ, {fitted.bits} bits"] = (fitted, "MAP on the same embeddings")
    return (
        *(Headline(name, f"{one.map_percent:.2f}", note) for name, (one, note) in ways.items()),
        Headline(
            f"{timing.queries:,} queries",
            f"{1000 * timing.code_seconds:,.1f} ms",
            f"{timing.ratio:.1f} times the speed of float search",
        ),
    )


def _unseen_classes(unseen: UnseenScores | None) -> list[Section]:
    if unseen is None:
        return []
    first = [score for score in unseen.scores if score.protocol in PROTOCOLS]
    others = [score for score in unseen.scores if score.protocol not in PROTOCOLS]
    shown: list[Block] = [
        kinds_table(
            first,
            caption="In per cent, means over all orders of equal scores. R@1: the first hit is of "
            "the query's class. MAP@R: over as many hits as the class has images. Named: the class "
            "of the nearest prototype. Bytes count the gallery's codebooks and prototypes.",
        ),
        kinds_table(
            others,
            caption="In use: copies, cropped by a tenth and compressed again, look for their "
            "originals (own look); growth, rows without label, and a tenth of the labels wrong.",
        ),
    ]
    if unseen.left_out:
        shown.append(Note(unseen.left_out, as_list=True))
    asked = unseen.scores[0]
    lead = (
        f"{asked.gallery:,} images of classes that training never saw. {UNSEEN.capitalize()}: they "
        "ask among each other, each without itself. A@B: queries of A, apart from a gallery of B. "
        "A gallery's own codes are fitted to it, without its labels, or with them."
    )
    return [Section("New kinds", tuple(shown), lead=lead)]


def _speed(evaluation: Evaluation) -> Section:
    timing = evaluation.timing
    timed = (
        (f"{evaluation.title} codes", timing.code_seconds, evaluation.codes),
        ("float search", timing.float_seconds, evaluation.float_search),
    )
    table = Table(
        columns=("search over", "ms", "queries per second", "bytes of gallery"),
        rows=tuple(
            (name, 1000 * s, round(timing.queries / s), timing.gallery * scores.bytes_per_image)
            for name, s, scores in timed
        ),
        caption=f"{timing.queries:,} queries, {timing.top_k} hits each, median of {timing.repeats} "
        f"repeats in turns, at most {timing.threads} threads. Embedding the queries is left out.",
        strong_row=0,
    )
    return Section("Speed", (table,))


def _epochs(evaluation: Evaluation) -> list[Section]:
    epochs = evaluation.epochs
    if epochs is None:
        return []
    table = Table(
        columns=("of the run", "epoch", "MAP"),
        rows=(
            ("last evaluated epoch", epochs.last.epoch, epochs.last.map),
            ("best evaluated epoch", epochs.best.epoch, epochs.best.map),
        ),
        caption=f"Measured while training, {epochs.evaluated} times. The best epoch is picked by "
        "the queries themselves, so it flatters; the last one is what the model is worth.",
        strong_row=0,
    )
    return [Section("The run", (table,))]


def _skipped(evaluation: Evaluation) -> list[Section]:
    reasons = [image.reason for image in evaluation.skipped]
    shown = reasons[:_NAMED_IMAGES]
    if len(reasons) > len(shown):
        shown.append(f"... and {len(reasons) - len(shown)} more; metrics.json names them all.")
    note, lead = Note(tuple(shown), as_list=True), f"{len(reasons)} images could not be read."
    return [Section("Images left out", (note,), lead=lead)] if reasons else []


def _bytes(scores: RetrievalScores) -> str:
    size = scores.bytes_per_image
    return f"{size:,} byte{'s' if size > 1 else ''} per image"
