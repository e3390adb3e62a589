"""The search of a part by its cells: compiled loops around those of `_kernels`.

Cells of all pairs of codebooks are walked outwards from the best ones, or those of the first pair
from the best first byte to the worst, whichever is cheaper. Both are exact: only cells are skipped
whose bound is below the scores already found.
"""

import numpy as np

from phpq.codes import FloatArray, IntArray
from phpq.compiling import compiled
from phpq.index._filter import BLOCK, filters, new_sieve
from phpq.index._kernels import (
    NO_ROW,
    Bounds,
    MaskArray,
    Part,
    Query,
    offer_list,
    offer_long_span,
    offer_span,
    replace_root,
)

_WALK_SHARE = 0.25  # of the cost of a scan; a longer walk is replaced by a scan
_LONG_WALK = 131_072.0  # groups; before a longer walk of a large part, cheaper ways are considered
_FILTERED = (0.05, 32.0)  # costs of a group and of a span that are filtered, in groups that are not
_SHORT_SPAN = 64  # groups of a cell; they are scored as fast as they are filtered
_FILTERED_GAP = 16 * BLOCK  # groups without hope that are filtered along, not to start anew
_ALONE = 32  # best first bytes that are filtered one by one, before the others in long spans
_LONE_WALK = 8_192.0  # of pair 0 alone: the filter makes a scan that skips cells the better way
_LARGE_PART = 262_144  # groups
_PROBED = (8, 32)  # best codewords of the first two codebooks whose cells are probed
_PROBED_GROUPS = 2048  # at most, in these cells
_MOST_CELLS = 0.75  # share of a first byte's groups above which all are read in one go,
_FULL_CELL = 32  # and groups per cell of a first byte below which they are
_LARGEST = 1e37  # sum of table entries beyond which bounds could overflow
_JUMP_COST = 4.0  # of a group reached through a list, relative to one read in sequence


@compiled
def _near(losses: FloatArray, m: int, reach: float, found: IntArray) -> int:
    """Collect the codewords of codebook m that lose at most `reach`; returns how many."""
    if m >= losses.shape[0]:  # the last of an odd number of codebooks has no partner
        found[0] = -1
        return 1
    count = 0
    for k in range(losses.shape[1]):
        found[count] = k
        count += losses[m, k] <= reach  # without a branch
    return count


@compiled
def _span_costs(part: Part) -> tuple[float, float]:
    """Return what a group of a long span, and the span, cost in groups that are scored."""
    return _FILTERED if filters(part.codes.shape[1]) else (1.0, 1.0)


@compiled
def _walk_cost(part: Part, query: Query, shell: tuple[float, float], walked: int) -> float:
    """Estimate the cost of `_walk`, in groups read in sequence."""
    losses, (inner, outer) = query.losses, shell
    codebooks, size = losses.shape
    firsts, seconds = query.near[0], query.near[1]
    cost = 0.0
    for pair in range(walked):
        paired = 2 * pair + 1 < codebooks
        count = _near(losses, 2 * pair, outer, firsts)
        cells = count * _near(losses, 2 * pair + 1, outer, seconds)
        each = part.codes.shape[0] / (size * size if paired else size)
        if paired and cells * each > 64:  # few are not worth counting exactly
            cells = 0
            for i in range(count):
                loss = losses[2 * pair, firsts[i]]
                for k in range(size):
                    both = loss + losses[2 * pair + 1, k]
                    cells += (both <= outer) & (both > inner)
        if pair == 0:
            group_cost, span_cost = _span_costs(part)
            cost += cells * min(1.0 + each, span_cost + group_cost * each)
        else:
            cost += cells * (1.0 + _JUMP_COST * each)
    return cost


@compiled
def _most_cost(part: Part, query: Query, walked: int, ends: bool) -> float:
    """Return what a step of a walk may cost; one that `ends` the search, as much as a scan."""
    group_cost, span_cost = _span_costs(part)
    scan: float = group_cost * part.codes.shape[0] + span_cost * query.table.shape[1]
    if not filters(part.codes.shape[1]):
        return _WALK_SHARE * scan
    if walked == 1:
        return min(_WALK_SHARE * scan, _LONE_WALK)
    return scan if ends else _WALK_SHARE * scan


@compiled
def _walk(
    part: Part,
    mask: MaskArray,
    query: Query,
    shell: tuple[float, float],
    bounds: Bounds,
    walked: int,
    met: float,
) -> None:
    """Offer every group that lies in a cell of the shell and was not met before.

    All pairs are walked, or only pair 0, after walks of all pairs that went as far as `met`.
    """
    losses, (inner, outer) = query.losses, shell
    firsts, seconds = query.near[0], query.near[1]
    for pair in range(walked):
        left, right = 2 * pair, 2 * pair + 1
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
                cells = part.cells[pair]
                span = (np.int64(cells[cell]), np.int64(cells[cell + 1]))
                if span[0] == span[1] or loss > bounds.best - query.scores[0] + bounds.margin:
                    continue  # empty, or by now the heap holds better rows
                if pair > 0:
                    offer_list(part, span, mask, query, shell, pair)
                elif span[1] - span[0] < _SHORT_SPAN:
                    offer_span(part, span, mask, query, (met, met))
                else:
                    offer_long_span(part, span, mask, query, (met, met), bounds)


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
def _few_hopeful(part: Part, query: Query, bounds: Bounds, most: float) -> bool:
    """Say whether fewer than `most` groups lie in cells of pair 0 that may hold a row."""
    count = 0
    for a in range(query.table.shape[1]):
        if query.table[0, a] + bounds.after_one >= query.scores[0]:
            count += _hopeful_groups(part, query, a, bounds)
            if count >= most:
                return False
    return True


@compiled
def _scan(
    part: Part, mask: MaskArray, query: Query, met: tuple[float, float], bounds: Bounds
) -> None:
    """Offer every group not met before, skipping first bytes and cells by their bounds.

    In a large part the best first bytes come first, so that the heap fills with good rows early.
    With the filter they always do, and the others follow in spans as long as can be.
    """
    table, cells = query.table, part.cells[0]
    codebooks, words = table.shape
    width = words if codebooks > 1 else 1  # cells of one first byte
    gap, alone, order = 0, words, np.arange(words)
    if filters(codebooks):
        gap, alone = _FILTERED_GAP, min(words, _ALONE)
    if filters(codebooks) or part.codes.shape[0] >= _LARGE_PART:
        order = np.argsort(query.losses[0])
        order[alone:] = np.sort(order[alone:])
    first, last = np.int64(0), np.int64(0)  # groups with hope that are still to be offered
    for place in range(words):
        a = order[place]
        if place <= alone:
            offer_long_span(part, (first, last), mask, query, met, bounds)
            first = last
        if table[0, a] + bounds.after_one < query.scores[0]:
            continue
        begin, end = np.int64(cells[a * width]), np.int64(cells[(a + 1) * width])
        few = codebooks == 1 or end - begin <= _FULL_CELL * words
        every = few or _hopeful_groups(part, query, a, bounds) > _MOST_CELLS * (end - begin)
        over = 0  # groups to filter along: none that another first byte has, they may be done
        for b in range(1 if every else words):
            if not every:
                if table[0, a] + table[1, b] + bounds.after_two < query.scores[0]:
                    continue
                begin, end = np.int64(cells[a * words + b]), np.int64(cells[a * words + b + 1])
            if not last <= begin <= last + over:
                offer_long_span(part, (first, last), mask, query, met, bounds)
                first = begin
            last, over = end, gap
    offer_long_span(part, (first, last), mask, query, met, bounds)


@compiled
def _probe(part: Part, mask: MaskArray, query: Query) -> None:
    """Raise the heap to the k-th score among the rows of some promising cells.

    At least k rows score as much, so nothing below can be in the answer. Places are filled with
    NO_ROW, which any row of that score replaces.
    """
    places = query.scores.size
    scores, rows = np.full(places, -np.inf, np.float32), np.full(places, NO_ROW, np.int64)
    scratch = Query(query.table, query.losses, scores, rows, query.near, query.sieve)
    words = query.table.shape[1]
    firsts = np.argsort(query.losses[0])[: _PROBED[0]]
    seconds = np.argsort(query.losses[1])[: _PROBED[1]]
    left = np.int64(_PROBED_GROUPS)
    for a in firsts:
        for b in seconds:
            cell = a * words + b
            first, last = np.int64(part.cells[0, cell]), np.int64(part.cells[0, cell + 1])
            last = min(last, first + left)
            offer_span(part, (first, last), mask, scratch, (-1.0, -1.0))
            left -= last - first
    while query.scores[0] < scratch.scores[0]:
        replace_root(query.scores, query.rows, places, scratch.scores[0], NO_ROW)


@compiled
def _bounds(query: Query) -> Bounds:
    """Fill the losses of a query, and bound its scores."""
    table = query.table
    best, spread, size, first, second = 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(table.shape[0]):
        top, low = table[m].max(), table[m].min()
        best += top
        spread += top - table[m].mean()
        size += max(abs(top), abs(low))
        first += top if m == 0 else 0.0
        second += top if m == 1 else 0.0
        for k in range(table.shape[1]):
            query.losses[m, k] = top - table[m, k]
    # Sums of float32 in different order differ by at most M * 2^-24 of the sizes; 8 times that.
    margin = (table.shape[0] + 2) * size * 2.0**-21
    rest = best - first + margin
    return Bounds(best, spread, size, margin, rest, rest - second)


@compiled
def _search_cells(part: Part, mask: MaskArray, query: Query, bounds: Bounds) -> None:
    """Walk the cells outwards from the best ones until nothing left can enter the heap.

    A group in no walked cell loses more than the reach of the walk in every pair, so its score is
    below the best possible one less pairs x reach. If the walk gets long, or the first pair alone
    decides sooner, the rest is scanned.
    """
    pairs, large = part.cells.shape[0], part.codes.shape[0] >= _LARGE_PART
    step = max(bounds.spread / (8.0 * pairs), 1e-30)
    walked, met, inner, outer, reach, probed = pairs, -1.0, -1.0, 0.0, np.inf, False
    while True:
        cost = _walk_cost(part, query, (inner, outer), walked)
        if large and walked > 1 and cost > _LONG_WALK:
            if not probed:
                _probe(part, mask, query)
                probed = True
            if _few_hopeful(part, query, bounds, cost / _span_costs(part)[0]):
                walked = 1  # pair 0 alone decides sooner
                continue
            reach = (bounds.best - query.scores[0] + bounds.margin) / walked
            if reach < outer:
                outer = reach
                cost = _walk_cost(part, query, (inner, outer), walked)
        if cost > _most_cost(part, query, walked, outer >= reach):
            _scan(part, mask, query, (met, inner), bounds)
            return
        _walk(part, mask, query, (inner, outer), bounds, walked, met)
        reach = (bounds.best - query.scores[0] + bounds.margin) / walked  # infinite: not full
        if outer >= reach or outer > 4.0 * bounds.size:
            return  # nothing left can enter, or every cell was walked
        inner = outer
        if walked == pairs:
            met = inner
        outer = min(reach, max(2.0 * outer, step))


@compiled
def search_part(
    tables: FloatArray, part: Part, mask: MaskArray, scores: FloatArray, rows: IntArray
) -> None:
    """Offer a part to the heaps (Q, k) of all queries, which are changed in place.

    Tables are (Q, M, K); `mask` says by row number which rows may be returned, empty allows all.
    """
    losses = np.empty(tables.shape[1:], np.float32)
    near = np.empty((2, tables.shape[2]), np.int64)
    sieve, groups = new_sieve(tables.shape[1]), part.codes.shape[0]
    for q in range(tables.shape[0]):
        query = Query(tables[q], losses, scores[q], rows[q], near, sieve)
        sieve.reach[0] = 0.0
        bounds = _bounds(query)
        if bounds.size > _LARGEST:
            offer_span(part, (0, groups), mask, query, (-1.0, -1.0))
        elif part.cells.shape[0]:
            _search_cells(part, mask, query, bounds)
        else:
            offer_long_span(part, (0, groups), mask, query, (-1.0, -1.0), bounds)
