"""Tie-aware retrieval measures: ranked tie groups in, numbers out.

Each measure is its exact expectation under a random order of tied items, so the order of the
gallery never changes it. Higher is better; values are fractions from 0 to 1. A query without a
relevant item in the gallery has no defined score: it is left out of every mean, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, check_codes, group_codes
from phpq.errors import ShapeError
from phpq.evaluation.ranking import TieGroups

Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PrecisionRecallCurve:
    """Interpolated precision at evenly spaced recall levels, averaged over the queries.

    At a level the precision is the largest expected precision of all ranks whose expected recall
    reaches it; without ties that is the usual interpolated precision.

    Attributes:
        recall: The levels, 0 to 1 (11 or 101 of them by custom).
        precision: As many values.
    """

    recall: tuple[float, ...]
    precision: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RetrievalMetrics:
    """What `measure` finds in one pass over the ranking.

    Attributes:
        map: Mean average precision over the whole gallery, 0 to 1.
        map_range: What MAP would be in the worst and in the best order of the tied items.
        precision_at: Mean precision of the first N hits, for each N asked for.
        curve: The precision-recall curve.
        queries: Queries that were averaged.
        excluded: Queries left out, because nothing in the gallery is relevant to them.
        gallery: Rows of the gallery.
    """

    map: float
    map_range: tuple[float, float]
    precision_at: dict[int, float]
    curve: PrecisionRecallCurve
    queries: int
    excluded: int
    gallery: int


@dataclass(frozen=True, slots=True)
class CodeHealth:
    """How well a set of codes uses its codebooks; collapse shows here first.

    Attributes:
        rows: Codes looked at.
        distinct_codes: Different codes among them.
        dead_codewords: Codewords that no row uses, for each codebook.
        entropy_bits: Entropy of the use of each codebook; log2 K at best.
        largest_share: Share of the rows that hold the commonest code, 0 to 1.
    """

    rows: int
    distinct_codes: int
    dead_codewords: tuple[int, ...]
    entropy_bits: tuple[float, ...]
    largest_share: float

    @property
    def dead_total(self) -> int:
        """Unused codewords of all codebooks together."""
        return sum(self.dead_codewords)

    @property
    def mean_entropy_bits(self) -> float:
        """Entropy of a codebook's use, averaged over the codebooks."""
        return sum(self.entropy_bits) / len(self.entropy_bits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "rows": self.rows,
            "distinct_codes": self.distinct_codes,
            "dead_codewords": list(self.dead_codewords),
            "dead_total": self.dead_total,
            "entropy_bits": list(self.entropy_bits),
            "mean_entropy_bits": self.mean_entropy_bits,
            "largest_share": self.largest_share,
        }


def tie_aware_average_precision(groups: TieGroups, *, cutoff: int | None = None) -> Float64Array:
    """Return the expected average precision of each query under a random order of ties.

    With r of the n items of a tie group relevant, and N items (R of them relevant) before it,

        AP = 1/R_all * sum over groups of r/n * sum_{i=1..n} (R + 1 + (i-1)(r-1)/(n-1)) / (N + i).

    The inner sums are differences of harmonic numbers, so no item is visited.

    Args:
        groups: A block of ranked queries.
        cutoff: K of AP@K: only the first K ranks count, and the divisor is the smaller of K and
            the relevant items of the whole gallery, so one early hit alone does not score 1.

    Returns:
        (B,) float64; 0 for a query without relevant items, which a mean must leave out.
    """
    depth = groups.gallery_size if cutoff is None else _positive("cutoff", cutoff)
    before, size, hits = groups.size_before, groups.size, groups.relevant
    seen = np.clip(depth - before, 0, size)  # ranks of the group inside the cutoff
    harmonic = _harmonic_numbers(groups.gallery_size)
    plain = harmonic[before + seen] - harmonic[before]  # sum of 1 / (N + i)
    weighted = seen - (before + 1) * plain  # sum of (i - 1) / (N + i)
    rate = (hits - 1) / np.maximum(size - 1, 1)
    terms = hits / size * ((groups.relevant_before + 1) * plain + rate * weighted)
    total = np.bincount(groups.query, weights=terms, minlength=len(groups.relevant_total))
    return total / np.maximum(np.minimum(groups.relevant_total, depth), 1)


def average_precision_range(groups: TieGroups) -> tuple[Float64Array, Float64Array]:
    """Return the average precision of each query in the worst and in the best order of its ties.

    A measure that takes ties as they come may be anything in between. The r relevant of n tied
    items stand on r ranks in a row, after s others, of which N stand before the group: s = N in the
    best order, N + n - r in the worst. They add

        sum_{i=1..r} (R + i) / (s + i) = r + (R - s) (H(s + r) - H(s)).

    Args:
        groups: A block of ranked queries.

    Returns:
        Two arrays (B,) float64; 0 for a query without relevant items.
    """
    harmonic = _harmonic_numbers(groups.gallery_size)
    hits, found = groups.relevant, groups.relevant_before
    values = []
    for before in (groups.size_before + groups.size - hits, groups.size_before):
        terms = hits + (found - before) * (harmonic[before + hits] - harmonic[before])
        total = np.bincount(groups.query, weights=terms, minlength=len(groups.relevant_total))
        values.append(total / np.maximum(groups.relevant_total, 1))
    return values[0], values[1]


def mean_average_precision(blocks: Iterable[TieGroups], *, cutoff: int | None = None) -> float:
    """Average the expected AP over all queries that have a relevant item.

    Args:
        blocks: From `rank_codes`, `rank_scores` or `rank_embeddings`.
        cutoff: K of MAP@K; None takes the whole gallery.
    """
    total, queries = 0.0, 0
    for groups in blocks:
        total += float(tie_aware_average_precision(groups, cutoff=cutoff).sum())
        queries += int(np.count_nonzero(groups.relevant_total))
    return total / max(queries, 1)


def precision_at(groups: TieGroups, cutoffs: Sequence[int]) -> Float64Array:
    """Return the expected share of relevant items among the first N, for each query and N.

    The divisor is N even where the gallery is smaller: what is missing is not relevant.

    Args:
        groups: A block of ranked queries.
        cutoffs: The values of N, each at least 1.

    Returns:
        (B, len(cutoffs)) float64.
    """
    result = np.zeros((len(groups.relevant_total), len(cutoffs)))
    for column, cutoff in enumerate(cutoffs):
        seen = np.clip(_positive("cutoff", cutoff) - groups.size_before, 0, groups.size)
        hits = groups.relevant * seen / groups.size
        result[:, column] = np.bincount(groups.query, weights=hits, minlength=len(result)) / cutoff
    return result


def precision_at_recall(groups: TieGroups, points: int = 11) -> Float64Array:
    """Return the interpolated precision of each query at evenly spaced recall levels.

    Within a tie group the expected hits grow linearly with the rank. The value at level t is the
    largest expected precision of all whole ranks whose expected recall is at least t. Expected
    precision is monotone inside a group, so only the ends of groups and the first rank that
    reaches the level can hold the largest.

    Args:
        groups: A block of ranked queries.
        points: Levels, from recall 0 to 1; at least 2.

    Returns:
        (B, points) float64; 0 for a query without relevant items.
    """
    steps = _positive("points", points, least=2) - 1
    totals = groups.relevant_total
    result = np.zeros((len(totals), points))
    having = np.flatnonzero(totals)
    if not len(having):
        return result
    hits_after = groups.relevant_before + groups.relevant
    at_end = hits_after / (groups.size_before + groups.size)
    best_from = _running_maximum_from_end(at_end, groups.query)
    # Whole numbers throughout: recall >= j / steps  <=>  hits * steps >= j * total.
    stride = int(totals.max()) * steps + 1
    keys = groups.query * stride + hits_after * steps
    for level in range(points):
        wanted = level * totals[having]
        first = np.searchsorted(keys, having * stride + np.maximum(wanted, 1))
        missing = np.maximum(wanted - groups.relevant_before[first] * steps, 1)
        rank = -(-missing * groups.size[first] // (groups.relevant[first] * steps))
        hits = groups.relevant_before[first] + groups.relevant[first] * rank / groups.size[first]
        result[having, level] = np.maximum(
            hits / (groups.size_before[first] + rank), best_from[first]
        )
    return result


def precision_recall_curve(
    blocks: Iterable[TieGroups], *, points: int = 11
) -> PrecisionRecallCurve:
    """Average the interpolated precision over all queries that have a relevant item.

    Args:
        blocks: From `rank_codes`, `rank_scores` or `rank_embeddings`.
        points: Recall levels, evenly spaced from 0 to 1.
    """
    return measure(blocks, cutoffs=(), recall_points=points).curve


def measure(
    blocks: Iterable[TieGroups], *, cutoffs: Sequence[int], recall_points: int = 11
) -> RetrievalMetrics:
    """Take every measure in one pass over the ranking.

    Args:
        blocks: From `rank_codes`, `rank_scores` or `rank_embeddings`.
        cutoffs: The N of P@N.
        recall_points: Levels of the precision-recall curve.
    """
    ap_total, queries, seen, gallery = 0.0, 0, 0, 0
    range_total = np.zeros(2)
    hits_total = np.zeros(len(cutoffs))
    curve_total = np.zeros(_positive("recall_points", recall_points, least=2))
    for groups in blocks:
        ap_total += float(tie_aware_average_precision(groups).sum())
        range_total += [part.sum() for part in average_precision_range(groups)]
        hits_total += precision_at(groups, cutoffs).sum(axis=0)
        curve_total += precision_at_recall(groups, recall_points).sum(axis=0)
        queries += int(np.count_nonzero(groups.relevant_total))
        seen += len(groups.relevant_total)
        gallery = groups.gallery_size
    divisor = max(queries, 1)
    curve = PrecisionRecallCurve(
        recall=tuple(level / (recall_points - 1) for level in range(recall_points)),
        precision=tuple(float(value) for value in curve_total / divisor),
    )
    lowest, highest = (range_total / divisor).tolist()
    return RetrievalMetrics(
        map=ap_total / divisor,
        map_range=(lowest, highest),
        precision_at={
            int(n): float(value) for n, value in zip(cutoffs, hits_total / divisor, strict=True)
        },
        curve=curve,
        queries=queries,
        excluded=seen - queries,
        gallery=gallery,
    )


def code_health(codes: CodeArray, codebook_size: int) -> CodeHealth:
    """Count distinct codes and dead codewords, and measure how evenly the codebooks are used.

    Args:
        codes: (N, M) uint8, N at least 1.
        codebook_size: K.
    """
    check_codes("codes", codes, codebook_size=codebook_size)
    if not len(codes):
        raise ShapeError("codes has no rows; expected at least one. Encode some images first.")
    sizes = group_codes(codes).sizes
    dead, entropies = [], []
    for column in codes.T:
        shares = np.bincount(column, minlength=codebook_size) / len(codes)
        used = shares[shares > 0]
        dead.append(int(codebook_size - len(used)))
        entropies.append(abs(float(-(used * np.log2(used)).sum())))  # abs: no "-0.0"
    return CodeHealth(
        rows=len(codes),
        distinct_codes=len(sizes),
        dead_codewords=tuple(dead),
        entropy_bits=tuple(entropies),
        largest_share=float(sizes.max() / len(codes)),
    )


@lru_cache(maxsize=4)
def _harmonic_numbers(largest: int) -> Float64Array:
    """Return H(0) .. H(largest), read-only because it is shared between blocks."""
    numbers = np.zeros(largest + 1)
    np.cumsum(1.0 / np.arange(1, largest + 1), out=numbers[1:])
    numbers.flags.writeable = False
    return numbers


def _running_maximum_from_end(values: Float64Array, query: NDArray[np.int64]) -> Float64Array:
    """Return, for each group, the largest of its own value and of all later ones of its query."""
    # Values are at most 1: an offset of 2 a query keeps the running maximum inside the query.
    offset = 2.0 * (query[-1] - query)
    running: Float64Array = np.maximum.accumulate((values + offset)[::-1])[::-1] - offset
    return running


def _positive(name: str, value: int, *, least: int = 1) -> int:
    if not isinstance(value, int | np.integer) or value < least:
        raise ShapeError(f"{name}={value!r} is not allowed; expected a whole number >= {least}.")
    return int(value)
