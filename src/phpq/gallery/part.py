"""A part of one version of a gallery: a store in, codes and texts of a range of its rows out.

Rows are cut into ranges of the order of insertion, so that whoever searches the parts can put the
answers together in that order. Only the files that hold a part are read for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from phpq.codes import CodeArray, IntArray
from phpq.gallery.damage import damage_named
from phpq.gallery.records import checked_codes
from phpq.gallery.store import GalleryStore


@dataclass(frozen=True, slots=True, eq=False)
class StoredPart:
    """Some rows of a version, neighbours in the order of insertion.

    Attributes:
        store: Where they are.
        first: The place of the first of them in the order of insertion.
        total: Rows of the whole version.
        rows: (n,) int64, ascending: the numbers that name them in the store.
        codes: (n, M) uint8.
        offsets: (n,) int64, their places in a scan of the store; None where these are
            `first` to `first + n - 1`.
        fragments: The fragments of the dataset that hold them.
    """

    store: GalleryStore
    first: int
    total: int
    rows: IntArray
    codes: CodeArray
    offsets: IntArray | None
    fragments: tuple[Any, ...]

    def texts(self, column: str) -> Iterator[tuple[IntArray, list[str | None]]]:
        """Yield positions in the part, (b,) int64, and what a text column holds there."""
        for rows, table in _scan(self.store, self.fragments, self.rows, ["row", column]):
            yield np.searchsorted(self.rows, rows), table.column(column).to_pylist()

    def positions_where(self, where: str) -> IntArray:
        """Return the positions in the part, ascending, for which an expression is true."""
        if not len(self.rows):  # whether the expression can be used is still to be said
            self.store.rows_where(where, fragments=self.store.dataset.get_fragments()[:1])
            return np.empty(0, np.int64)
        rows = self.store.rows_where(where, fragments=self.fragments)
        inside = rows[(rows >= self.rows[0]) & (rows <= self.rows[-1])]
        positions: IntArray = np.searchsorted(self.rows, inside)
        return positions


def part_bounds(total: int, parts: int) -> IntArray:
    """Return (parts + 1,) int64: part p holds the places from entry p up to entry p + 1."""
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def read_part(store: GalleryStore, number: int = 0, parts: int = 1) -> StoredPart:
    """Read the codes of a part, and check every row.

    Args:
        store: The gallery, at one version.
        number: Of the part, from 0.
        parts: How many there are; their sizes differ by one row at most.

    Raises:
        FormatError: If a code is missing or not what was written.
    """
    with damage_named(store.folder):
        total = len(store)
        first, last = part_bounds(total, parts)[number : number + 2].tolist()
        rows = _rows_in_order(store, first, last)
        offsets = None
        if rows is None:  # replaced images, and some compactions, leave another order
            every = store.dataset.to_table(columns=["row"]).column("row").to_numpy()
            offsets = np.argsort(every, kind="stable")[first:last]
            rows = every[offsets]
        fragments = _fragments(store, np.arange(first, last) if offsets is None else offsets)
        codes = np.empty((last - first, store.manifest.num_codebooks), np.uint8)
        seen = 0
        for found, table in _scan(store, fragments, rows, ["row", "code", "check"]):
            _, block = checked_codes(table, codes.shape[1])
            codes[np.searchsorted(rows, found)] = block
            seen += len(found)
        if seen != len(rows):
            raise ValueError("rows are missing")
    return StoredPart(store, first, total, rows, codes, offsets, fragments)


def _rows_in_order(store: GalleryStore, first: int, last: int) -> IntArray | None:
    """Return the row numbers of a range of places; None if a scan is not in order of insertion.

    Memory stays that of the part, however large the gallery is.
    """
    kept, place, before = [np.empty(0, np.int64)], 0, -1
    for batch in store.dataset.to_batches(columns=["row"]):
        rows = batch.column("row")
        if rows.null_count:
            raise ValueError("codes are missing")
        numbers = rows.to_numpy()
        if not len(numbers):
            continue
        if numbers[0] <= before or (np.diff(numbers) <= 0).any():
            return None
        before = int(numbers[-1])
        kept.append(numbers[max(first - place, 0) : max(last - place, 0)].copy())
        place += len(numbers)
    return np.concatenate(kept)


def _fragments(store: GalleryStore, offsets: IntArray) -> tuple[Any, ...]:
    """Return the fragments that hold these places of a scan."""
    fragments = store.dataset.get_fragments()
    edges = np.cumsum([0, *(fragment.count_rows() for fragment in fragments)])
    held = np.unique(np.searchsorted(edges, offsets, side="right") - 1)
    return tuple(fragments[number] for number in held.tolist())


def _scan(
    store: GalleryStore, fragments: tuple[Any, ...], rows: IntArray, columns: list[str]
) -> Iterator[tuple[IntArray, Any]]:
    """Yield row numbers and Arrow tables of the given ascending rows."""
    if not len(rows):
        return
    with damage_named(store.folder):
        for batch in store.dataset.scanner(columns=columns, fragments=fragments).to_batches():
            table = pa.Table.from_batches([batch])
            numbers = table.column("row").to_numpy()
            inside = (numbers >= rows[0]) & (numbers <= rows[-1])
            if inside.any():
                yield numbers[inside], table if inside.all() else table.filter(inside)
