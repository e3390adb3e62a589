"""Tie-aware retrieval measures: ranked tie groups in, numbers out.

Each measure, except for `precision_at_1_served`, is its exact expectation under a random order of
tied items, so that it does not depend on the order of the gallery. Values are fractions from 0 to
1; higher is better. A query without a relevant item in the gallery has no score: it is left out of
every mean, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, check_codes, group_codes
from phpq.errors import ShapeError
from phpq.evaluation._ranking import TieGroups

Float64Array = NDArray[np.float64]
RECALLS = (1, 2, 4, 8, 10)  # the k of R@k


@dataclass(frozen=True, slots=True)
class CodeHealth:
    """How well a set of codes uses its codebooks; collapse shows here first."""

    rows: int  # number of codes
    distinct_codes: int
    dead_codewords: tuple[int, ...]  # codewords that no row uses, for each codebook
    entropy_bits: tuple[float, ...]  # of the use of each codebook; log2 K at best
    largest_share: float  # of rows with the most frequent code, 0 to 1

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
        totals = {"dead_total": self.dead_total, "mean_entropy_bits": self.mean_entropy_bits}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return plain | totals


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalScores:
    """The quality of one search on one gallery. Scores are fractions from 0 to 1.

    A tool that breaks ties arbitrarily reports a MAP inside `map_range`. `precision_at_1_served`
    breaks them by the order of the gallery, as an index does; P@1 is its mean over all orders. A
    gallery that keeps embeddings breaks ties by float scores.
    """

    method: str = ""  # "codes", "float" or "pq"
    map: float  # tie-aware mean average precision over the whole gallery
    map_range: tuple[float, float]  # in the worst and in the best order of tied images
    map_at_r: float  # the same over the first R hits only, R the relevant images of a query
    recall_at: dict[int, float]  # share of the queries with a relevant image in the first k, by k
    precision_at: dict[int, float]  # mean precision of the first N hits, by N
    precision_at_1_served: float  # share of the queries whose first hit is relevant
    # The same with ties broken by float scores; None if no embeddings are kept.
    precision_at_1_by_float: float | None = None
    pr_curve: dict[float, float]  # precision by recall, see `precision_at_recall`
    queries: int  # that were averaged
    excluded: int  # queries left out: nothing in the gallery is relevant to them
    gallery: int  # rows
    bits: int = 0  # that a gallery image takes
    health: CodeHealth | None = None  # None for float search

    @property
    def map_percent(self) -> float:
        """MAP in per cent, as tables print it."""
        return 100 * self.map

    @property
    def map_range_percent(self) -> tuple[float, float]:
        """MAP in the worst and in the best order of ties, in per cent."""
        lowest, highest = self.map_range
        return 100 * lowest, 100 * highest

    @property
    def bytes_per_image(self) -> int:
        """Whole bytes that a gallery image takes."""
        return -(-self.bits // 8)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; MAP, R@k, P@N and the curve in per cent."""
        return asdict(self) | {
            "map": self.map_percent,
            "map_range": list(self.map_range_percent),
            "map_at_r": 100 * self.map_at_r,
            "recall_at": {str(k): 100 * value for k, value in self.recall_at.items()},
            "precision_at": {str(n): 100 * value for n, value in self.precision_at.items()},
            "precision_at_1_served": 100 * self.precision_at_1_served,
            "precision_at_1_by_float": None
            if self.precision_at_1_by_float is None
            else 100 * self.precision_at_1_by_float,
            "pr_curve": {
                "recall": [100 * level for level in self.pr_curve],
                "precision": [100 * value for value in self.pr_curve.values()],
            },
            "health": None if self.health is None else self.health.to_dict(),
        }


def tie_aware_average_precision(
    groups: TieGroups, depth: NDArray[np.int64] | None = None
) -> Float64Array:
    """Return the expected average precision of each query under a random order of ties.

    Only the first `depth` (B,) ranks of a query count, if given: the number of its relevant items
    makes it MAP@R.

    With r of the n items of a tie group relevant, and N items (R of them relevant) before it,

        AP = 1/R_all * sum over groups of r/n * sum_{i=1..n} (R + 1 + (i-1)(r-1)/(n-1)) / (N + i).

    The inner sums are differences of harmonic numbers, so no item is visited. Returns (B,) float64;
    0 for a query without relevant items, which a mean must leave out.
    """
    before, size, hits = groups.size_before, groups.size, groups.relevant
    ranks = size if depth is None else np.clip(depth[groups.query] - before, 0, size)
    harmonic = _harmonic_numbers(groups.gallery_size)
    plain = harmonic[before + ranks] - harmonic[before]  # sum of 1 / (N + i)
    weighted = ranks - (before + 1) * plain  # sum of (i - 1) / (N + i)
    rate = (hits - 1) / np.maximum(size - 1, 1)
    return _average(groups, hits / size * ((groups.relevant_before + 1) * plain + rate * weighted))


def average_precision_range(groups: TieGroups) -> tuple[Float64Array, Float64Array]:
    """Return the average precision of each query in the worst and in the best order of its ties.

    The r relevant of n tied items have r consecutive ranks after s other items: s = N, the items
    before the group, in the best order, and N + n - r in the worst. They add

        sum_{i=1..r} (R + i) / (s + i) = r + (R - s) (H(s + r) - H(s)).
    """
    harmonic = _harmonic_numbers(groups.gallery_size)
    hits, found = groups.relevant, groups.relevant_before
    worst, best = (
        _average(groups, hits + (found - before) * (harmonic[before + hits] - harmonic[before]))
        for before in (groups.size_before + groups.size - hits, groups.size_before)
    )
    return worst, best


def precision_at(groups: TieGroups, cutoffs: Sequence[int]) -> Float64Array:
    """Return the expected share of relevant items among the first N, (B, len(cutoffs)) float64.

    The divisor is N even if the gallery is smaller.
    """
    result = np.zeros((len(groups.relevant_total), len(cutoffs)))
    for column, cutoff in enumerate(cutoffs):
        seen = np.clip(_positive("cutoff", cutoff) - groups.size_before, 0, groups.size)
        hits = groups.relevant * seen / groups.size
        result[:, column] = np.bincount(groups.query, weights=hits, minlength=len(result)) / cutoff
    return result


def recall_at(groups: TieGroups, cutoffs: Sequence[int]) -> Float64Array:
    """Return the chance that a relevant item is among the first k, (B, len(cutoffs)) float64.

    Only the first group with a relevant item matters: of its n items, r relevant, m are among the
    first k, and all of them miss with probability (n-r)/n * (n-r-1)/(n-1) * ..., m factors.
    """
    result = np.zeros((len(groups.relevant_total), len(cutoffs)))
    queries, first = np.unique(groups.query, return_index=True)
    before, size, hits = groups.size_before[first], groups.size[first], groups.relevant[first]
    missed = [np.ones(len(first))]  # by m
    for m in range(max((_positive("cutoff", k) for k in cutoffs), default=0)):
        missed.append(missed[-1] * np.clip(size - hits - m, 0, None) / np.maximum(size - m, 1))
    for column, cutoff in enumerate(cutoffs):
        ranks = np.clip(cutoff - before, 0, cutoff)
        result[queries, column] = 1 - np.stack(missed)[ranks, np.arange(len(first))]
    return result


def precision_at_recall(groups: TieGroups, points: int = 11) -> Float64Array:
    """Return the interpolated precision of each query at evenly spaced recall levels.

    Within a tie group the expected hits grow linearly with the rank. The value at level t is the
    largest expected precision of all whole ranks whose expected recall is at least t. Expected
    precision is monotone inside a group, so only the ends of groups and the first rank that
    reaches the level can hold the largest. Returns (B, points); 0 without relevant items.
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


def measure(
    blocks: Iterable[TieGroups], *, cutoffs: Sequence[int], recall_points: int = 11
) -> RetrievalScores:
    """Compute every measure in one pass over a ranking of `rank_codes` or `rank_embeddings`.

    The caller sets `method`, `bits` and `health` of the scores.
    """
    ap_total, first_total, served, queries, seen, gallery = 0.0, 0.0, 0, 0, 0, 0
    range_total = np.zeros(2)
    recall_total = np.zeros(len(RECALLS))
    hits_total = np.zeros(len(cutoffs))
    curve_total = np.zeros(_positive("recall_points", recall_points, least=2))
    for groups in blocks:
        ap_total += float(tie_aware_average_precision(groups).sum())
        first_total += float(tie_aware_average_precision(groups, groups.relevant_total).sum())
        recall_total += recall_at(groups, RECALLS).sum(axis=0)
        range_total += [part.sum() for part in average_precision_range(groups)]
        hits_total += precision_at(groups, cutoffs).sum(axis=0)
        served += int(np.count_nonzero(groups.first_relevant))
        curve_total += precision_at_recall(groups, recall_points).sum(axis=0)
        queries += int(np.count_nonzero(groups.relevant_total))
        seen += len(groups.relevant_total)
        gallery = groups.gallery_size
    divisor = max(queries, 1)
    lowest, highest = (range_total / divisor).tolist()
    return RetrievalScores(
        map=ap_total / divisor,
        map_range=(lowest, highest),
        map_at_r=first_total / divisor,
        recall_at=dict(zip(RECALLS, (recall_total / divisor).tolist(), strict=True)),
        precision_at=dict(zip(map(int, cutoffs), (hits_total / divisor).tolist(), strict=True)),
        precision_at_1_served=served / divisor,
        pr_curve={
            level / (recall_points - 1): float(value)
            for level, value in enumerate(curve_total / divisor)
        },
        queries=queries,
        excluded=seen - queries,
        gallery=gallery,
    )


def code_health(codes: CodeArray, codebook_size: int) -> CodeHealth:
    """Measure how evenly (N, M) codes, N at least 1, use their codebooks of K codewords."""
    check_codes("codes", codes, codebook_size=codebook_size)
    if not len(codes):
        raise ShapeError("codes has no rows; expected at least one. Encode some images first.")
    sizes = group_codes(codes).sizes
    dead, entropies = [], []
    for column in codes.T:
        counts = np.bincount(column, minlength=codebook_size)
        dead.append(int(np.count_nonzero(counts == 0)))
        entropies.append(entropy_bits(counts))
    largest = float(sizes.max() / len(codes))
    return CodeHealth(len(codes), len(sizes), tuple(dead), tuple(entropies), largest)


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Return the entropy in bits of a distribution that is given by counts; 0 if all are zero."""
    shares = counts[counts > 0] / max(1, int(counts.sum()))
    return abs(float(-(shares * np.log2(shares)).sum()))  # abs: no "-0.0"


def _average(groups: TieGroups, terms: Float64Array) -> Float64Array:
    """Sum the terms of each query, divided by the number of its relevant items."""
    total = np.bincount(groups.query, weights=terms, minlength=len(groups.relevant_total))
    return total / np.maximum(groups.relevant_total, 1)


@lru_cache(maxsize=4)
def _harmonic_numbers(largest: int) -> Float64Array:
    """Return H(0) .. H(largest), read-only because it is shared between blocks."""
    numbers = np.zeros(largest + 1)
    np.cumsum(1.0 / np.arange(1, largest + 1), out=numbers[1:])
    numbers.flags.writeable = False
    return numbers


def _running_maximum_from_end(values: Float64Array, query: NDArray[np.int64]) -> Float64Array:
    """Return, for each group, the largest of its own value and of all later ones of its query."""
    # Values are at most 1: an offset of 2 per query keeps the running maximum inside the query.
    offset = 2.0 * (query[-1] - query)
    running: Float64Array = np.maximum.accumulate((values + offset)[::-1])[::-1] - offset
    return running


def _positive(name: str, value: int, *, least: int = 1) -> int:
    if not isinstance(value, int | np.integer) or value < least:
        raise ShapeError(f"{name}={value!r} is not allowed; expected a whole number >= {least}.")
    return int(value)
