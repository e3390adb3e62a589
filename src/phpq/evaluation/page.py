"""An `Evaluation` and its pictures in, the `Report` that becomes `report.html` out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phpq.evaluation.protocol import RetrievalScores
from phpq.evaluation.report import (
    Block,
    Figure,
    Headline,
    Note,
    Report,
    Section,
    Settings,
    Table,
)

if TYPE_CHECKING:
    from phpq.evaluation.run import Evaluation

_TABLE_CUTOFFS = (1, 10, 100)
_NAMED_IMAGES = 20  # images left out that are named one by one


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a page, each a PNG."""

    precision_at: bytes
    precision_recall: bytes
    top10: bytes


def build_page(evaluation: Evaluation, pictures: Pictures) -> Report:
    """Lay out what was measured."""
    sections = [
        _retrieval(evaluation, pictures),
        Section(
            "What a search brings back",
            (
                Figure(
                    pictures.top10,
                    alt="Queries, each with its first ten hits marked right or wrong",
                    caption="Green with a tick: the class of the query. Red with a cross: another.",
                    wide=True,
                ),
            ),
            lead="One query of each of a few classes, spread evenly over all of them and chosen "
            "before the result was known.",
        ),
        _speed(evaluation),
    ]
    if evaluation.epochs is not None:
        sections.append(_epochs(evaluation))
    sections += [_health(evaluation)]
    if evaluation.skipped:
        sections.append(_skipped(evaluation))
    sections.append(_settings(evaluation))
    return Report(
        title=f"{evaluation.dataset}: search with {evaluation.bits}-bit codes",
        summary=_summary(evaluation),
        headlines=_headlines(evaluation),
        sections=tuple(sections),
    )


def _summary(evaluation: Evaluation) -> str:
    codes = evaluation.codes
    text = (
        f"{codes.queries:,} queries against a gallery of {codes.gallery:,} images; an image of the "
        f"query's class is relevant. Each gallery image is kept as a code of {evaluation.bits} "
        f"bits, {_bytes(codes)}."
    )
    if evaluation.held_out:
        text += (
            f" The queries are {evaluation.held_out} images a class held out of the training "
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
    codes, timing = evaluation.codes, evaluation.timing
    headlines = [
        Headline(
            f"MAP at {evaluation.bits} bits", f"{codes.map_percent:.2f}", "whole gallery, per cent"
        ),
        Headline(
            "float search",
            f"{evaluation.float_search.map_percent:.2f}",
            f"MAP, {_bytes(evaluation.float_search)}",
        ),
        Headline(
            f"post-hoc PQ, {evaluation.posthoc_pq.bits} bits",
            f"{evaluation.posthoc_pq.map_percent:.2f}",
            "MAP on the same embeddings",
        ),
        Headline(
            f"{timing.queries:,} queries",
            f"{1000 * timing.code_seconds:,.1f} ms",
            f"{timing.ratio:.1f} times the speed of float search",
        ),
    ]
    return (headlines[0], headlines[-1]) if evaluation.lossless else tuple(headlines)


def _retrieval(evaluation: Evaluation, pictures: Pictures) -> Section:
    ways = evaluation.ways
    cutoffs = [n for n in _TABLE_CUTOFFS if n in evaluation.codes.precision_at]
    table = Table(
        columns=("search over", "bytes an image", "MAP", *(f"P@{n}" for n in cutoffs)),
        rows=tuple(
            (
                name,
                -(-scores.bits // 8),
                scores.map_percent,
                *(100 * scores.precision_at[n] for n in cutoffs),
            )
            for name, scores in ways.items()
        ),
        caption="In per cent. MAP is over the whole gallery and does not depend on the order of "
        "images with equal scores; P@N is the share of relevant images among the first N.",
        strong_row=0,
    )
    return Section(
        "Retrieval",
        (
            table,
            Figure(pictures.precision_at, alt="Precision of the first N hits against N"),
            Figure(pictures.precision_recall, alt="Precision against recall"),
        ),
        lead="The embeddings of this method are its codes: search without codes finds the same."
        if evaluation.lossless
        else "Three ways to search the same embeddings: by the learned codes, without codes, and "
        "by a product quantizer fitted afterwards.",
    )


def _speed(evaluation: Evaluation) -> Section:
    timing = evaluation.timing
    table = Table(
        columns=("search over", "ms", "queries a second", "bytes of gallery"),
        rows=(
            (
                f"{evaluation.title} codes",
                1000 * timing.code_seconds,
                round(timing.queries / timing.code_seconds),
                timing.gallery * -(-evaluation.codes.bits // 8),
            ),
            (
                "float search",
                1000 * timing.float_seconds,
                round(timing.queries / timing.float_seconds),
                timing.gallery * evaluation.float_search.bits // 8,
            ),
        ),
        caption=f"{timing.queries:,} queries, {timing.top_k} hits each, median of {timing.repeats} "
        f"repeats in turns, at most {timing.threads} threads. Embedding the queries is left out.",
        strong_row=0,
    )
    return Section("Speed", (table,))


def _epochs(evaluation: Evaluation) -> Section:
    epochs = evaluation.epochs
    assert epochs is not None
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
    return Section("The run", (table,))


def _health(evaluation: Evaluation) -> Section:
    ways = tuple((name, s) for name, s in evaluation.ways.items() if s.health is not None)
    caption = (
        f"Of {evaluation.codes.gallery:,} gallery images. Entropy is the mean over the "
        "codebooks; near zero, the codebooks have collapsed. Images of one class may well share "
        "a code."
    )
    return Section("Use of the codebooks", (health_table(ways, caption=caption),))


def health_table(ways: Iterable[tuple[str, RetrievalScores]], *, caption: str) -> Table:
    """Show how each way of searching that has codes uses its codebooks."""
    rows = [
        (
            name,
            scores.health.distinct_codes,
            scores.health.dead_total,
            scores.health.mean_entropy_bits,
            100 * scores.health.largest_share,
        )
        for name, scores in ways
        if scores.health is not None
    ]
    columns = ("codes", "distinct", "dead codewords", "entropy, bits", "largest group, %")
    return Table(columns=columns, rows=tuple(rows), caption=caption)


def _skipped(evaluation: Evaluation) -> Section:
    reasons = [image.reason for image in evaluation.skipped]
    shown = reasons[:_NAMED_IMAGES]
    if len(reasons) > len(shown):
        shown.append(f"... and {len(reasons) - len(shown)} more; metrics.json names them all.")
    return Section(
        "Images left out",
        (Note(tuple(shown), as_list=True),),
        lead=f"{len(reasons)} images could not be read.",
    )


def _settings(evaluation: Evaluation) -> Section:
    facts: tuple[tuple[str, str], ...] = (
        ("data set", evaluation.source or evaluation.dataset),
        ("epochs trained", str(evaluation.epochs_trained)),
        ("fingerprint of the weights", evaluation.fingerprint),
    )
    options = tuple(
        (f"{stage}.{name}", str(value))
        for stage, fields in evaluation.settings.items()
        for name, value in fields.items()
    )
    blocks: tuple[Block, ...] = (Settings("Model and data", facts), Settings("Config", options))
    return Section("Settings", blocks)


def _bytes(scores: RetrievalScores) -> str:
    size = -(-scores.bits // 8)
    return f"{size:,} byte{'s' if size > 1 else ''} an image"
