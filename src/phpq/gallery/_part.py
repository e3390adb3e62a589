"""The rows of one version in order of insertion: a store in, codes, texts and tables out.

A part is a range of that order. Only the files that hold its rows are read for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import CodeArray, IntArray
from phpq.gallery.folder import damage_named
from phpq.gallery.records import checked_codes, numbers
from phpq.gallery.store import GalleryStore

_SCAN_ROWS = 1 << 16  # rows that are read and checked at once
_TABLE_ROWS = 8192  # rows of one table of `batches`


@dataclass(frozen=True, slots=True, eq=False)
class StoredPart:
    """A range of rows of a version, in the order of insertion."""

    store: GalleryStore
    first: int  # place of the first row
    total: int  # rows of the whole version
    rows: IntArray  # (n,) int64, ascending: their row numbers
    offsets: IntArray | None  # (n,) int64 in a scan of the store; None: from `first` on
    fragments: tuple[Any, ...]  # of the dataset, that hold the rows; empty if read from the copy

    def codes(self) -> CodeArray:
        """Read the codes (n, M) uint8; a `FormatError` if one is missing or damaged."""
        codes = np.empty((len(self.rows), self.store.manifest.num_codebooks), np.uint8)
        seen = 0
        with damage_named(self.store.folder):
            for places, table in self._scan(["row", "code", "check"]):
                codes[places] = checked_codes(table, codes.shape[1])[1]
                seen += len(places)
            if seen != len(codes):
                raise ValueError(f"{len(codes) - seen} rows are missing")
        return codes

    def texts(self, column: str) -> Iterator[tuple[IntArray, list[str | None]]]:
        """Yield positions in the part, (b,) int64, and their texts in a column."""
        for places, table in self._scan(["row", column]):
            yield places, table.column(column).to_pylist()

    def positions_of(self, column: str, text: str) -> IntArray:
        """Return the positions in the part, ascending, that have `text` in a column."""
        import pyarrow.compute as pc

        found = [np.empty(0, np.int64)]
        for places, table in self._scan(["row", column]):
            found.append(places[pc.fill_null(pc.equal(table[column], text), False).to_numpy()])
        return np.sort(np.concatenate(found))

    def mask_where(self, where: str) -> NDArray[np.bool_]:
        """Return (n,) bool: the rows for which an expression is true."""
        # One fragment even without rows: an invalid expression must raise.
        fragments = self.fragments
        if not fragments:
            fragments = self.store.dataset.get_fragments()[: None if len(self.rows) else 1]
        rows = self.store.rows_where(where, fragments=fragments)
        mask = np.zeros(len(self.rows), np.bool_)
        if len(mask):
            inside = rows[(rows >= self.rows[0]) & (rows <= self.rows[-1])]
            mask[np.searchsorted(self.rows, inside)] = True
        return mask

    def _scan(self, columns: list[str]) -> Iterator[tuple[IntArray, Any]]:
        """Yield positions in the part and Arrow tables of these rows."""
        if not len(self.rows):
            return
        with damage_named(self.store.folder):
            for batch in self.store.scan(
                columns, rows=_SCAN_ROWS, fragments=self.fragments or None
            ):
                table = pa.Table.from_batches([batch])
                if table.column("row").null_count:
                    raise ValueError("codes are missing")
                found = numbers(table.column("row"))
                inside = (found >= self.rows[0]) & (found <= self.rows[-1])
                if inside.any():
                    kept = table if inside.all() else table.filter(pa.array(inside))
                    yield np.searchsorted(self.rows, found[inside]), kept


def part_bounds(total: int, parts: int) -> IntArray:
    """Return (parts + 1,) int64: part p holds the places from bound p up to bound p + 1."""
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def find_part(store: GalleryStore, number: int = 0, parts: int = 1) -> StoredPart:
    """Find the rows of part `number` of `parts`, whose sizes differ by one row at most."""
    with damage_named(store.folder):
        total = len(store)
        first, last = part_bounds(total, parts)[number : number + 2].tolist()
        rows, offsets = _rows(store, first, last)
        fragments = store.dataset.get_fragments() if store.copied is None else []
        edges = np.cumsum([0, *(fragment.count_rows() for fragment in fragments)])
        places = np.arange(first, last) if offsets is None else offsets
        held = np.unique(np.searchsorted(edges, places, side="right") - 1)[: len(fragments)]
        holding = tuple(fragments[index] for index in held.tolist())
    return StoredPart(store, first, total, rows, offsets, holding)


def batches(store: GalleryStore, *, without: tuple[str, ...] = ("row", "check")) -> Iterator[Any]:
    """Yield all columns but some as Arrow tables, in the order of insertion."""
    columns = [name for name in store.dataset.schema.names if name not in without]
    with damage_named(store.folder):
        rows, offsets = _rows(store, 0, len(store))
        for start in range(0, len(rows), _TABLE_ROWS):
            stop = min(start + _TABLE_ROWS, len(rows))
            part = range(start, stop) if offsets is None else offsets[start:stop].tolist()
            yield store.dataset.take(list(part), columns=columns)


def _rows(store: GalleryStore, first: int, last: int) -> tuple[IntArray, IntArray | None]:
    """Return the row numbers of a range of places, ascending, and their offsets in a scan.

    Offsets are None if a scan yields all rows in the order of insertion; memory is then that of the
    range. Replaced images and some compactions change the order.
    """
    kept, place, before = [np.empty(0, np.int64)], 0, -1
    for batch in store.scan(["row"], rows=_SCAN_ROWS):
        if batch.column("row").null_count:
            raise ValueError("codes are missing")
        found = np.from_dlpack(batch.column("row")).astype(np.int64, copy=False)
        if not len(found):
            continue
        if found[0] <= before or (np.diff(found) <= 0).any():
            scanned = store.scan(["row"], rows=_SCAN_ROWS)
            every = np.concatenate([np.from_dlpack(part.column("row")) for part in scanned])
            offsets = np.argsort(every, kind="stable")[first:last]
            return every[offsets], offsets
        before = int(found[-1])
        kept.append(found[max(first - place, 0) : max(last - place, 0)].copy())
        place += len(found)
    return np.concatenate(kept), None
