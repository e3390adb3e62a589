"""Builds a part from codes in row order: sorted, grouped, with the groups of each cell.

By counting sorts of two bytes at a time, in time linear in the rows. Loads numba.
"""

import numpy as np

from phpq.codes import CodeArray
from phpq.compiling import compiled
from phpq.index._kernels import MaskArray, Part, WordArray
from phpq.index.engine import part_layout


@compiled
def _cell(codes: CodeArray, row: int, pair: int, size: int) -> int:
    cell: int = np.int64(codes[row, 2 * pair])  # type: ignore[assignment]
    if 2 * pair + 1 < codes.shape[1]:
        cell = cell * size + codes[row, 2 * pair + 1]
    return cell


@compiled
def _sort_by_cell(
    codes: CodeArray, order: WordArray, pair: int, size: int, starts: WordArray
) -> WordArray:
    """Sort `order` by the cells of its rows, stably; fills the `starts` (cells + 1,) of cells."""
    starts[:] = 0
    for row in range(codes.shape[0]):
        starts[_cell(codes, row, pair, size) + 1] += 1
    for cell in range(1, starts.size):
        starts[cell] += starts[cell - 1]
    place = starts.copy()
    result = np.empty_like(order)
    for row in order:
        cell = _cell(codes, row, pair, size)
        result[place[cell]] = row
        place[cell] += 1
    return result


@compiled
def _same(codes: CodeArray, row: int, other: int) -> bool:
    for m in range(codes.shape[1]):  # noqa: SIM110 - numba has no all()
        if codes[row, m] != codes[other, m]:
            return False
    return True


@compiled
def _count_groups(codes: CodeArray, order: WordArray) -> int:
    count = 1
    for i in range(1, order.size):
        count += not _same(codes, order[i], order[i - 1])
    return count


@compiled
def _fill_groups(
    codes: CodeArray, order: WordArray, group_codes: CodeArray, starts: WordArray
) -> None:
    """Write the code and the first place of each run of equal codes."""
    group = -1
    for i in range(order.size):
        if i == 0 or not _same(codes, order[i], order[i - 1]):
            group += 1
            starts[group] = i
            group_codes[group] = codes[order[i]]
    starts[group + 1] = order.size


@compiled
def _place_codes(part: Part, codes: CodeArray) -> None:
    for group in range(part.codes.shape[0]):
        first, last = group, group + 1
        if part.starts.size:
            first, last = part.starts[group], part.starts[group + 1]
        for place in range(first, last):
            codes[part.rows[place]] = part.codes[group]


@compiled
def _copy_allowed(part: Part, mask: MaskArray, kept: Part) -> int:
    """Copy the allowed rows, and the groups that have any, to `kept`; returns the groups."""
    count, groups = 0, 0
    for group in range(part.codes.shape[0]):
        first, last = np.int64(group), np.int64(group + 1)
        if part.starts.size:
            first, last = np.int64(part.starts[group]), np.int64(part.starts[group + 1])
        before = count
        for place in range(first, last):
            if mask[part.base + np.int64(part.rows[place])]:
                kept.rows[count] = part.rows[place]
                count += 1
        if count > before:
            kept.codes[groups] = part.codes[group]
            kept.starts[groups] = before
            groups += 1
    kept.starts[groups] = count
    return groups


def build_part(codes: CodeArray, base: int, codebook_size: int) -> Part:
    """Sort and group codes (n, M) uint8, 1 <= n < 2^32; `base` is the number of the first row.

    The part keeps no reference to `codes`; see `part_layout` for its memory.
    """
    rows, codebooks = codes.shape
    pairs = (codebooks + 1) // 2
    starts = np.empty(codebook_size**2 + 1, dtype=np.uint32)
    order = np.arange(rows, dtype=np.uint32)
    for pair in range(pairs - 1, -1, -1):
        order = _sort_by_cell(codes, order, pair, codebook_size, starts)
    layout = part_layout(
        rows, _count_groups(codes, order), num_codebooks=codebooks, codebook_size=codebook_size
    )
    count, used_pairs = layout.entries, layout.pairs
    if layout.grouped:
        group_codes = np.empty((count, codebooks), dtype=np.uint8)
        group_starts = np.empty(count + 1, dtype=np.uint32)
        _fill_groups(codes, order, group_codes, group_starts)
    else:
        group_codes, group_starts = codes[order], np.empty(0, dtype=np.uint32)
    cells = np.empty((used_pairs, codebook_size**2 + 1), dtype=np.uint32)
    lists = np.empty((max(0, used_pairs - 1), count), dtype=np.uint32)
    every = np.arange(count, dtype=np.uint32)
    for pair in range(used_pairs):
        by_cell = _sort_by_cell(group_codes, every, pair, codebook_size, cells[pair])
        if pair:
            lists[pair - 1] = by_cell
    return Part(group_codes, group_starts, order, cells, lists, base)


def restrict_part(part: Part, mask: MaskArray) -> Part:
    """Copy the rows that a mask (rows,) by row number allows to a part that is only scanned.

    It costs one pass over the part, and then every query is cheap.
    """
    allowed = int(np.count_nonzero(mask[part.base : part.base + len(part.rows)]))
    kept = Part(
        codes=np.empty((allowed, part.codes.shape[1]), dtype=np.uint8),
        starts=np.empty(allowed + 1, dtype=np.uint32),
        rows=np.empty(allowed, dtype=np.uint32),
        cells=np.empty((0, part.cells.shape[1]), dtype=np.uint32),
        lists=np.empty((0, 0), dtype=np.uint32),
        base=part.base,
    )
    groups = _copy_allowed(part, mask, kept)
    return kept._replace(codes=kept.codes[:groups], starts=kept.starts[: groups + 1])


def part_codes(part: Part) -> CodeArray:
    """Return the codes of a part in row order, (n, M) uint8."""
    codes = np.empty((len(part.rows), part.codes.shape[1]), dtype=np.uint8)
    _place_codes(part, codes)
    return codes


def part_bytes(part: Part) -> int:
    """Return the memory of a part."""
    return sum(array.nbytes for array in part if isinstance(array, np.ndarray))
