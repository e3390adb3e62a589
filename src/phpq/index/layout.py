"""How a part of an index is laid out, and what it takes in memory: counts in, bytes out. No numba.

`build_part` asks here, so that what is predicted of an index is what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

# Cells cost K * K words per book: below so many entries, or 8 times the rows, a scan is as fast.
CELL_GROUPS = 512
_WORD = 4  # bytes of a row number, a place and an entry of a list


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The shape of a part."""

    entries: int  # codes that are kept and scored: one for each distinct code, or one per row
    grouped: bool  # whether equal codes share an entry
    books: int  # pairs of codebooks whose cells list their entries; 0: a part is only scanned
    memory_bytes: int  # of codes, places, row numbers, cells and lists


def part_layout(
    rows: int, distinct: int, *, num_codebooks: int, codebook_size: int = 256
) -> PartLayout:
    """Choose the layout of n >= 1 rows that hold some distinct codes of M indices below K.

    It takes at most n (1.5 M + 7) bytes, beside 4 (K^2 + 1) bytes for each two codebooks.
    """
    # Codes that hardly repeat take less memory, and are scanned faster, row by row.
    grouped = distinct * (num_codebooks + _WORD) <= rows * num_codebooks
    entries = distinct if grouped else rows
    places = _WORD * (entries + 1) if grouped else 0
    used = _WORD * rows + entries * num_codebooks + places
    room = int(rows * (1.5 * num_codebooks + 7)) - used
    pairs = (num_codebooks + 1) // 2
    books = pairs if room >= _WORD * entries * (pairs - 1) else 1
    if entries < CELL_GROUPS or rows <= 8 * CELL_GROUPS:
        books = 0
    used += _WORD * books * (codebook_size**2 + 1) + _WORD * max(0, books - 1) * entries
    return PartLayout(entries, grouped, books, used)


def index_bytes(rows: int, distinct: int, *, num_codebooks: int, codebook_size: int = 256) -> int:
    """Return the memory of a `CodeIndex`."""
    if not rows:
        return 0
    layout = part_layout(rows, distinct, num_codebooks=num_codebooks, codebook_size=codebook_size)
    return layout.memory_bytes


def most_bytes(rows: int, *, num_codebooks: int, codebook_size: int = 256) -> int:
    """Return what an index of N rows takes at most, however its codes repeat."""
    pairs = (num_codebooks + 1) // 2
    return int(rows * (1.5 * num_codebooks + 7)) + _WORD * pairs * (codebook_size**2 + 1)
