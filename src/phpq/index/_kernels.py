"""Compiled loops of the exact search: lookup tables (Q, M, K) and one part of a gallery in.

The best rows of each query come out in a heap whose root is the worst row kept. Importing this
module loads numba, so `phpq.index.engine` does it when it is first needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray, IntArray

WordArray = NDArray[np.uint32]
MaskArray = NDArray[np.bool_]

NO_ROW = np.iinfo(np.int64).max  # fills a heap together with -inf: any row is better

# A query gives up walking cells and scans instead when the next walk would cost this share of it.
_WALK_SHARE = 0.25
_LONG_WALK = 8192.0  # groups; a query that has more before it looks for the cheaper way first
_PROBED = (8, 32)  # best codewords of the first two codebooks whose cells are tried first,
_PROBED_GROUPS = 8192  # up to so many groups, to learn what scores there are
_MOST_CELLS = 0.75  # share of a first byte's groups above which they are read without a gap
_BLOCK = 256  # groups whose first four bytes are looked at before the others
_LARGEST = 1e37  # sum of table entries beyond which bounds could overflow
_JUMP_COST = 4.0  # a group reached through a list, in groups read one after the other


class Part(NamedTuple):
    """Some rows of a gallery, grouped by code; codes in lexicographic order.

    Bytes are taken two by two: book j covers codebooks 2j and 2j + 1 (the last only 2j when M is
    odd), and the cell of a code in a book is a K + b. Groups of one cell of book 0 lie together;
    for the other books `lists` holds the groups by cell.
    """

    codes: CodeArray  # (G, M) one code per group
    starts: WordArray  # (G + 1,) first place of each group in `rows`; empty: a group is one row
    rows: WordArray  # (n,) row numbers less `base`, ascending inside a group
    cells: WordArray  # (books, K * K + 1) first group of each cell; no books: only to be scanned
    lists: WordArray  # (books - 1, G) groups by cell
    base: int  # row number of the part's first row


class Query(NamedTuple):
    """One query and the best rows found so far."""

    table: FloatArray  # (M, K)
    losses: FloatArray  # (M, K) the codebook's best entry less each entry
    scores: FloatArray  # (k,) a heap; the worst row kept is its root
    rows: IntArray  # (k,)
    near: IntArray  # (2, K) scratch: codewords
    hopeful: IntArray  # (_BLOCK,) scratch: groups


class Bounds(NamedTuple):
    """What a query's scores can be at most; all but `best` with a margin for rounding."""

    best: float  # the best entries of all codebooks
    size: float  # the largest entries of all codebooks, whatever their sign
    margin: float  # sums of float32 in any order differ by less
    after_one: float  # what codebooks 1, 2, ... add to a score
    after_two: float
    after_four: float


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called; keep the result on disk; release the GIL."""
    result: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    return result


@compiled
def _worse(score: float, row: int, other_score: float, other_row: int) -> bool:
    return score < other_score or (score == other_score and row > other_row)


@compiled
def _replace_root(scores: FloatArray, rows: IntArray, size: int, score: float, row: int) -> None:
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
        _replace_root(query.scores, query.rows, query.scores.size, score, row)


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
    """Find the first group of a span that scores at least `worst`; the span's end if none does.

    Written out for the usual lengths: a loop over the codebooks takes twice the time.
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
def _seen(query: Query, part: Part, group: int, shell: tuple[float, float], book: int) -> bool:
    """Tell whether a group was met before: in an earlier walk, or in this one in a lower book."""
    books, (inner, outer) = part.codes.shape[1], shell
    for other in range(part.cells.shape[0]):
        loss = query.losses[2 * other, part.codes[group, 2 * other]]
        if 2 * other + 1 < books:
            loss = loss + query.losses[2 * other + 1, part.codes[group, 2 * other + 1]]
        if loss <= inner or (other < book and loss <= outer):
            return True
    return False


@compiled
def _offer_span(
    part: Part, span: tuple[int, int], mask: MaskArray, query: Query, inner: float
) -> None:
    """Offer the groups from one place to another that were not met in an earlier walk."""
    group, last = span
    while True:
        group, score = _next_hit(query.table, part.codes, (group, last), query.scores[0])
        if group >= last:
            break
        if not _seen(query, part, group, (inner, inner), 0):
            _offer(part, group, score, mask, query)
        group += 1


@compiled
def _offer_cell(
    part: Part, cell: int, mask: MaskArray, query: Query, inner: float, bounds: Bounds
) -> None:
    """Offer the groups of a cell of book 0 that were not met in an earlier walk.

    The first four bytes rule out most groups of long codes. Without a branch to guess, looking at
    them takes less time than it saves.
    """
    t, c, found = query.table, part.codes, query.hopeful
    first, last = np.int64(part.cells[0, cell]), np.int64(part.cells[0, cell + 1])
    if c.shape[1] <= 4:
        _offer_span(part, (first, last), mask, query, inner)
        return
    while first < last:
        stop = min(first + _BLOCK, last)
        least = np.float32(query.scores[0] - bounds.after_four)
        count, begun = 0, t[0, c[first, 0]] + t[1, c[first, 1]]
        for g in range(first, stop):
            found[count] = g
            count += begun + t[2, c[g, 2]] + t[3, c[g, 3]] >= least
        for i in range(count):
            score = _score(t, c, found[i])
            if score >= query.scores[0] and not _seen(query, part, found[i], (inner, inner), 0):
                _offer(part, found[i], score, mask, query)
        first = stop


@compiled
def _offer_list(
    part: Part, cell: int, mask: MaskArray, query: Query, shell: tuple[float, float], book: int
) -> None:
    """Offer the groups of a cell of another book that were not met before."""
    first, last = np.int64(part.cells[book, cell]), np.int64(part.cells[book, cell + 1])
    for place in range(first, last):
        group = np.int64(part.lists[book - 1, place])
        score = _score(query.table, part.codes, group)
        if score >= query.scores[0] and not _seen(query, part, group, shell, book):
            _offer(part, group, score, mask, query)


@compiled
def _near(losses: FloatArray, m: int, reach: float, found: IntArray) -> int:
    """Collect the codewords of codebook m that lose at most `reach`; returns how many."""
    if m >= losses.shape[0]:  # the book has one codebook only: one partner, which loses nothing
        found[0] = -1
        return 1
    count = 0
    for k in range(losses.shape[1]):
        found[count] = k
        count += losses[m, k] <= reach  # no branch to guess
    return count


@compiled
def _walk_cost(part: Part, query: Query, shell: tuple[float, float]) -> float:
    """Estimate the groups met by `_walk`, in groups read one after the other."""
    losses, (inner, outer) = query.losses, shell
    books, size = losses.shape
    firsts, seconds = query.near[0], query.near[1]
    cost = 0.0
    for book in range(part.cells.shape[0]):
        paired = 2 * book + 1 < books
        count = _near(losses, 2 * book, outer, firsts)
        cells = count * _near(losses, 2 * book + 1, outer, seconds)
        each = part.codes.shape[0] / (size * size if paired else size)
        if paired and cells * each > 64:  # few are not worth the counting
            cells = 0
            for i in range(count):
                loss = losses[2 * book, firsts[i]]
                for k in range(size):
                    pair = loss + losses[2 * book + 1, k]
                    cells += (pair <= outer) & (pair > inner)
        cost += cells * (1.0 + (each if book == 0 else _JUMP_COST * each))
    return cost


@compiled
def _walk(
    part: Part, mask: MaskArray, query: Query, shell: tuple[float, float], bounds: Bounds
) -> None:
    """Offer every group that lies in a cell of the shell, in any book, and was not met before."""
    losses, (inner, outer) = query.losses, shell
    firsts, seconds = query.near[0], query.near[1]
    for book in range(part.cells.shape[0]):
        left, right = 2 * book, 2 * book + 1
        first_count = _near(losses, left, outer, firsts)
        second_count = _near(losses, right, outer, seconds)
        for i in range(first_count):
            a = firsts[i]
            for j in range(second_count):
                b = seconds[j]
                cell, loss = a, losses[left, a]
                if b >= 0:
                    cell, loss = a * losses.shape[1] + b, loss + losses[right, b]
                if loss > outer or loss <= inner:
                    continue
                if book == 0:
                    _offer_cell(part, cell, mask, query, inner, bounds)
                else:
                    _offer_list(part, cell, mask, query, shell, book)


@compiled
def _hopeful_groups(part: Part, query: Query, a: int, bounds: Bounds) -> int:
    """Count the groups of first byte `a` in cells that may hold a row for the heap."""
    table, cells = query.table, part.cells[0]
    words, count = table.shape[1], 0
    least = np.float32(query.scores[0] - bounds.after_two)
    for b in range(words):
        cell = a * words + b
        size = np.int64(cells[cell + 1]) - np.int64(cells[cell])
        count += size * (table[0, a] + table[1, b] >= least)
    return count


@compiled
def _scan_cost(part: Part, query: Query, bounds: Bounds) -> float:
    """Count the groups that `_scan` would look at, were the heap to stay as it is."""
    count = 0
    for a in range(query.table.shape[1]):
        if query.table[0, a] + bounds.after_one >= query.scores[0]:
            count += _hopeful_groups(part, query, a, bounds)
    return float(count)


@compiled
def _scan(part: Part, mask: MaskArray, query: Query, inner: float, bounds: Bounds) -> None:
    """Offer every group not met within `inner`, skipping first bytes and cells without hope.

    The first bytes go from the best to the worst, so that the heap fills with good rows early.
    """
    table, cells = query.table, part.cells[0]
    books, words = table.shape
    width = words if books > 1 else 1  # cells of one first byte
    for a in np.argsort(query.losses[0]):
        if table[0, a] + bounds.after_one < query.scores[0]:
            return
        first, last = np.int64(cells[a * width]), np.int64(cells[(a + 1) * width])
        few = books == 1 or last - first <= words
        if few or _hopeful_groups(part, query, a, bounds) > _MOST_CELLS * (last - first):
            _offer_span(part, (first, last), mask, query, inner)
            continue
        for b in range(words):
            if table[0, a] + table[1, b] + bounds.after_two >= query.scores[0]:
                _offer_cell(part, a * words + b, mask, query, inner, bounds)


@compiled
def _probe(part: Part, mask: MaskArray, query: Query) -> None:
    """Raise the heap to the k-th score among the rows of some promising cells.

    At least k rows score as much, so nothing below can be in the answer. Places are filled with no
    row, which any row of that score replaces.
    """
    places = query.scores.size
    scores, rows = np.full(places, -np.inf, np.float32), np.full(places, NO_ROW, np.int64)
    scratch = Query(query.table, query.losses, scores, rows, query.near, query.hopeful)
    words = query.table.shape[1]
    firsts = np.argsort(query.losses[0])[: _PROBED[0]]
    seconds = np.argsort(query.losses[1])[: _PROBED[1]]
    left = _PROBED_GROUPS
    for a in firsts:
        for b in seconds:
            cell = a * words + b
            first, last = np.int64(part.cells[0, cell]), np.int64(part.cells[0, cell + 1])
            last = min(last, first + left)
            _offer_span(part, (first, last), mask, scratch, -1.0)
            left -= last - first
    while query.scores[0] < scratch.scores[0]:
        _replace_root(query.scores, query.rows, places, scratch.scores[0], NO_ROW)


@compiled
def _bounds(query: Query) -> Bounds:
    """Fill the losses of a query, and bound its scores."""
    table = query.table
    best, size, after = 0.0, 0.0, np.zeros(5)
    for m in range(table.shape[0]):
        top, low = table[m].max(), table[m].min()
        best += top
        size += max(abs(top), abs(low))
        after[: min(m, 4) + 1] += top
        for k in range(table.shape[1]):
            query.losses[m, k] = top - table[m, k]
    # Sums of float32 in different order differ by at most M * 2^-24 of the sizes; 8 times that.
    margin = (table.shape[0] + 2) * size * 2.0**-21
    after += margin
    return Bounds(best, size, margin, after[1], after[2], after[4])


@compiled
def _search_cells(part: Part, mask: MaskArray, query: Query) -> None:
    """Walk the cells outwards from the best ones until nothing left can enter the heap.

    A group in no walked cell loses more than the walk's reach in every book, so its score is below
    the best conceivable one less books x reach. Where the walk gets long, or the first two
    codebooks alone decide sooner, the rest is scanned.
    """
    table, bounds = query.table, _bounds(query)
    if bounds.size > _LARGEST:
        _offer_span(part, (0, part.codes.shape[0]), mask, query, -1.0)
        return
    books = part.cells.shape[0]
    limit = _WALK_SHARE * part.codes.shape[0] + 64.0
    spread = bounds.best
    for m in range(table.shape[0]):
        spread -= table[m].mean()
    step = max(spread / (8.0 * books), 1e-30)
    inner, outer, probed = -1.0, 0.0, False
    while True:
        cost = _walk_cost(part, query, (inner, outer))
        if cost > min(limit, _LONG_WALK) and table.shape[0] > 1:
            if not probed:
                _probe(part, mask, query)
                probed = True
            reach = (bounds.best - query.scores[0] + bounds.margin) / books
            outer = min(outer, reach)
            scan = _scan_cost(part, query, bounds)
            whole = cost if scan < cost else _walk_cost(part, query, (inner, reach))
            if scan < whole or whole > limit:
                _scan(part, mask, query, inner, bounds)
                return
        elif cost > limit:
            _scan(part, mask, query, inner, bounds)
            return
        _walk(part, mask, query, (inner, outer), bounds)
        reach = (bounds.best - query.scores[0] + bounds.margin) / books  # infinite: free places
        if outer >= reach or outer > 4.0 * bounds.size:
            return  # nothing left can enter, or every cell was walked
        inner = outer
        outer = min(reach, max(2.0 * outer, step))


@compiled
def search_part(
    tables: FloatArray, part: Part, mask: MaskArray, scores: FloatArray, rows: IntArray
) -> None:
    """Offer a part to the heaps (Q, k) of all queries, which are changed in place.

    Tables are (Q, M, K); `mask` says by row number which rows may be returned, empty allows all.
    """
    losses = np.empty(tables.shape[1:], np.float32)
    near, hopeful = np.empty((2, tables.shape[2]), np.int64), np.empty(_BLOCK, np.int64)
    for q in range(tables.shape[0]):
        query = Query(tables[q], losses, scores[q], rows[q], near, hopeful)
        if part.cells.shape[0]:
            _search_cells(part, mask, query)
        else:
            _offer_span(part, (0, part.codes.shape[0]), mask, query, -1.0)


@compiled
def sort_heaps(scores: FloatArray, rows: IntArray) -> None:
    """Turn each heap (Q, k), in place, into a list with the best row first and -1 for no row."""
    for q in range(scores.shape[0]):
        for last in range(scores.shape[1] - 1, 0, -1):
            score, row = scores[q, last], rows[q, last]
            scores[q, last], rows[q, last] = scores[q, 0], rows[q, 0]
            _replace_root(scores[q], rows[q], last, score, row)
        for place in range(scores.shape[1]):
            if rows[q, place] == NO_ROW:
                rows[q, place] = -1
