"""Compiled loops of the exact search: lookup tables (Q, M, K) and one part of a gallery in.

The best rows of each query come out in a heap whose root is the worst of them. Importing this
module loads numba, so `phpq.index.engine` does it on first use.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.compiling import compiled
from phpq.index._filter import BLOCK, CHUNK, Sieve, filters, set_reach, sift

WordArray = NDArray[np.uint32]
MaskArray = NDArray[np.bool_]

NO_ROW = np.iinfo(np.int64).max  # fills a heap together with -inf: any row is better


class Part(NamedTuple):
    """Some rows of a gallery, grouped by code; codes in lexicographic order.

    Codebooks are taken in pairs: pair j has codebooks 2j and 2j + 1 (the last only 2j when M is
    odd), and the cell of a code with bytes a and b in a pair is a K + b. Groups of one cell of pair
    0 are adjacent; for the other pairs `lists` holds the groups by cell.
    """

    codes: CodeArray  # (G, M) one code per group
    starts: WordArray  # (G + 1,) first place of each group in `rows`; empty: a group is one row
    rows: WordArray  # (n,) row numbers less `base`, ascending inside a group
    cells: WordArray  # (pairs, K * K + 1) first group of each cell; no pairs: only to be scanned
    lists: WordArray  # (pairs - 1, G) groups by cell
    base: int  # row number of the part's first row


class Query(NamedTuple):
    """One query and the best rows found so far."""

    table: FloatArray  # (M, K)
    losses: FloatArray  # (M, K) the codebook's best entry less each entry
    scores: FloatArray  # (k,) a heap; the worst row kept is its root
    rows: IntArray  # (k,)
    near: IntArray  # (2, K) scratch: codewords
    sieve: Sieve


class Bounds(NamedTuple):
    """Bounds of a query's scores."""

    best: float  # sum of the best entries of all codebooks
    spread: float  # the same less the mean entries
    size: float  # sum of the largest absolute entries
    margin: float  # sums of float32 in different orders differ by less
    after_one: float  # most that codebooks 1, 2, ... add to a score, plus the margin
    after_two: float  # the same for codebooks 2, 3, ...


@compiled
def _worse(score: float, row: int, other_score: float, other_row: int) -> bool:
    return score < other_score or (score == other_score and row > other_row)


@compiled
def replace_root(scores: FloatArray, rows: IntArray, size: int, score: float, row: int) -> None:
    """Put (score, row) in place of the root of a heap of `size`."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            scores[child + 1], rows[child + 1], scores[child], rows[child]
        ):
            child += 1
        if not _worse(scores[child], rows[child], score, row):
            break
        scores[hole] = scores[child]
        rows[hole] = rows[child]
        hole = child
    scores[hole] = score
    rows[hole] = row


@compiled
def _offer(part: Part, group: int, score: float, mask: MaskArray, query: Query) -> None:
    """Offer the rows of a group to the heap."""
    first, last = np.int64(group), np.int64(group) + 1
    if part.starts.size:
        first, last = np.int64(part.starts[group]), np.int64(part.starts[group + 1])
    for place in range(first, last):
        row = part.base + np.int64(part.rows[place])
        if mask.size and not mask[row]:
            continue
        if not _worse(query.scores[0], query.rows[0], score, row):
            break  # the rows of a group ascend: the others are worse
        replace_root(query.scores, query.rows, query.scores.size, score, row)


@compiled
def _score(table: FloatArray, codes: CodeArray, group: int) -> float:
    """Score one code; the order of the additions is the order of the codebooks."""
    score: float = table[0, codes[group, 0]]
    for m in range(1, codes.shape[1]):
        score += table[m, codes[group, m]]
    return score


@compiled
def _next_hit(  # noqa: C901 - one loop per length
    table: FloatArray, codes: CodeArray, span: tuple[int, int], worst: float
) -> tuple[int, float]:
    """Find the first group of a span that scores at least `worst`, or return the span's end.

    Unrolled for the usual lengths: a loop over the codebooks takes twice the time.
    """
    t, c = table, codes
    if codes.shape[1] == 8:
        for g in range(span[0], span[1]):
            score = t[0, c[g, 0]] + t[1, c[g, 1]] + t[2, c[g, 2]] + t[3, c[g, 3]]
            score = score + t[4, c[g, 4]] + t[5, c[g, 5]] + t[6, c[g, 6]] + t[7, c[g, 7]]
            if score >= worst:
                return g, score
    elif codes.shape[1] == 6:
        for g in range(span[0], span[1]):
            score = t[0, c[g, 0]] + t[1, c[g, 1]] + t[2, c[g, 2]] + t[3, c[g, 3]]
            score = score + t[4, c[g, 4]] + t[5, c[g, 5]]
            if score >= worst:
                return g, score
    elif codes.shape[1] == 4:
        for g in range(span[0], span[1]):
            score = t[0, c[g, 0]] + t[1, c[g, 1]] + t[2, c[g, 2]] + t[3, c[g, 3]]
            if score >= worst:
                return g, score
    else:
        for g in range(span[0], span[1]):
            score = _score(t, c, g)
            if score >= worst:
                return g, score
    return span[1], worst


@compiled
def _seen(query: Query, part: Part, group: int, shell: tuple[float, float], pair: int) -> bool:
    """Say whether a group was met before: in an earlier walk, or in this one in a lower pair."""
    codebooks, (inner, outer) = part.codes.shape[1], shell
    for other in range(part.cells.shape[0]):
        loss = query.losses[2 * other, part.codes[group, 2 * other]]
        if 2 * other + 1 < codebooks:
            loss = loss + query.losses[2 * other + 1, part.codes[group, 2 * other + 1]]
        if loss <= inner or (other < pair and loss <= outer):
            return True
    return False


@compiled
def offer_span(
    part: Part, span: tuple[int, int], mask: MaskArray, query: Query, met: tuple[float, float]
) -> None:
    """Offer the groups of a span that were not met in an earlier walk.

    `met` is how far those went: in any pair, and in pair 0.
    """
    group, last = span
    while True:
        group, score = _next_hit(query.table, part.codes, (group, last), query.scores[0])
        if group >= last:
            break
        if not _seen(query, part, group, met, 1):
            _offer(part, group, score, mask, query)
        group += 1


@compiled
def offer_long_span(
    part: Part,
    span: tuple[int, int],
    mask: MaskArray,
    query: Query,
    met: tuple[float, float],
    bounds: Bounds,
) -> None:
    """Offer the groups of a span as `offer_span` does, most of them left out by the filter."""
    group, last = span
    if not filters(part.codes.shape[1]):
        offer_span(part, span, mask, query, met)
        return
    while group < last:
        worst = query.scores[0]
        if worst == -np.inf:  # the heap is not full
            end, left = min(last, group + CHUNK // 8), -1
        else:
            end = min(last, group // BLOCK * BLOCK + CHUNK)
            reach = bounds.best - worst + bounds.margin
            limit = set_reach(query.sieve, query.losses, reach)
            left = sift(query.sieve, part.codes, (group, end), limit)
        if left < 0:
            offer_span(part, (group, end), mask, query, met)
        for place in range(left):
            group = query.sieve.left[place]
            score = _score(query.table, part.codes, group)
            if score >= query.scores[0] and not _seen(query, part, group, met, 1):
                _offer(part, group, score, mask, query)
        group = end


@compiled
def offer_list(
    part: Part,
    span: tuple[int, int],
    mask: MaskArray,
    query: Query,
    shell: tuple[float, float],
    pair: int,
) -> None:
    """Offer the groups of a cell of another pair that were not met before."""
    for place in range(span[0], span[1]):
        group = np.int64(part.lists[pair - 1, place])
        score = _score(query.table, part.codes, group)
        if score >= query.scores[0] and not _seen(query, part, group, shell, pair):
            _offer(part, group, score, mask, query)


@compiled
def sort_heaps(scores: FloatArray, rows: IntArray) -> None:
    """Turn each heap (Q, k), in place, into a list with the best row first and -1 for no row."""
    for q in range(scores.shape[0]):
        for last in range(scores.shape[1] - 1, 0, -1):
            score, row = scores[q, last], rows[q, last]
            scores[q, last], rows[q, last] = scores[q, 0], rows[q, 0]
            replace_root(scores[q], rows[q], last, score, row)
        for place in range(scores.shape[1]):
            if rows[q, place] == NO_ROW:
                rows[q, place] = -1
