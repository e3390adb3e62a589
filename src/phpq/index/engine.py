"""The exact index for learned codes: codes come and go by row, queries give the best rows.

Equal codes are scored once, and groups of codes that cannot enter the answer are never looked at;
scores and order are those of a plain scan, bit for bit.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm, check_codes, seen_as
from phpq.errors import ShapeError

if TYPE_CHECKING:
    from phpq.index.kernels import Part

BoolArray = NDArray[np.bool_]

_TAIL_ROWS = 4096  # new rows are scanned one by one until there are this many
_PART_ROWS = 1 << 31  # row numbers inside a part are 32 bits wide
_THREADS_SECONDS = 2e-3  # work below which starting threads takes longer than it saves
_FEW_ALLOWED = 64  # where less than one row in so many is allowed, those are copied first,
_MANY_QUERIES = 4  # unless fewer queries than these are there to profit from it
_GROWTH = 4  # a part is merged into the one before it unless that is this many times larger


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The best rows of each query, best first; equal scores in order of insertion."""

    ids: IntArray  # (Q, k) row numbers in order of insertion; -1 where the gallery has too few rows
    scores: FloatArray  # (Q, k) float32, descending; -inf beside a -1


class CodeIndex:
    """A gallery of codes in memory; rows are numbered in order of insertion and never renumbered.

    Searches may run in several threads at once; adding and removing need the index for themselves.

    Args:
        codebooks: The codebooks the codes were made with.
        codes: (N, M) uint8, the first rows.
    """

    def __init__(self, codebooks: Codebooks, codes: CodeArray | None = None) -> None:
        self._codebooks = codebooks
        self._parts: list[Part] = []  # in row order, each at least `_GROWTH` times the next
        self._tail = np.empty((0, codebooks.num_codebooks), dtype=np.uint8)
        self._tail_rows = 0  # filled rows of `_tail`
        # One entry a row, and some to spare; empty until a row is removed.
        self._alive: BoolArray = np.empty(0, dtype=np.bool_)
        self._removed = 0
        if codes is not None:
            self.add(codes)

    @property
    def codebooks(self) -> Codebooks:
        """The codebooks of the rows."""
        return self._codebooks

    @property
    def rows(self) -> int:
        """Rows ever added; the next row gets this number."""
        return self._sorted_rows + self._tail_rows

    def __len__(self) -> int:
        return self.rows - self._removed

    def memory_bytes(self) -> int:
        """Return the memory of codes, row numbers, tables of cells and marks of removed rows."""
        if not self._parts:
            return int(self._tail.nbytes + self._alive.nbytes)
        from phpq.index.part import part_bytes

        parts = sum(part_bytes(part) for part in self._parts)
        return int(parts + self._tail.nbytes + self._alive.nbytes)

    def add(self, codes: CodeArray) -> IntArray:
        """Append rows; the next search finds them.

        A few rows cost no more than a copy; now and then the newest rows are sorted, and merged
        with older ones of about the same number, so that a row is moved O(log N) times in all.
        Takes codes (n, M) uint8 and returns their row numbers (n,).
        """
        books = self._codebooks
        check_codes("codes", codes, books.num_codebooks, books.codebook_size)
        first = self.rows
        if self._alive.size:
            self._alive = _grown(self._alive, first + len(codes))
        if self._tail_rows + len(codes) <= _TAIL_ROWS:
            self._append_to_tail(codes)
        else:
            self._merge(codes)
        return np.arange(first, first + len(codes), dtype=np.int64)

    def remove(self, rows: IntArray) -> None:
        """Hide rows, given by number, from every later search; doing so again changes nothing."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
            raise ShapeError(
                f"rows is {seen_as(rows)}; expected row numbers, (n,) integers, as `add` returned "
                "them."
            )
        if not rows.size:
            return
        for row in (int(rows.min()), int(rows.max())):
            if not 0 <= row < self.rows:
                raise ShapeError(
                    f"rows holds {row!r}; expected 0 to {self.rows - 1}, the rows added so far. "
                    "Pass row numbers as `add` returned them."
                )
        if not self._alive.size:
            self._alive = np.ones(self.rows, dtype=np.bool_)
        rows = np.unique(rows)
        self._removed += int(np.count_nonzero(self._alive[rows]))
        self._alive[rows] = False

    def codes(self) -> CodeArray:
        """Return the codes of all rows, (rows, M) uint8 in row order, removed ones included."""
        from phpq.index.part import part_codes

        blocks = [part_codes(part) for part in self._parts]
        return np.concatenate([*blocks, self._tail[: self._tail_rows]])

    def search(
        self,
        queries: FloatArray,
        top_k: int = 10,
        *,
        query_norm: QueryNorm = "unit",
        allowed: BoolArray | None = None,
        threads: int = 0,
    ) -> SearchResult:
        """Return the `top_k` rows of highest score, ties in order of insertion.

        Args:
            queries: (Q, D) float.
            top_k: Rows per query, at least 1.
            query_norm: "unit" or "raw", see `Codebooks.lookup_tables`.
            allowed: (rows,) bool, the rows that may be returned; None allows all.
            threads: Threads that share the queries; 0 takes every core.
        """
        tables = self._codebooks.lookup_tables(queries, norm=query_norm)
        return self._search(tables, top_k, allowed, threads)

    def search_tables(
        self,
        tables: FloatArray,
        top_k: int = 10,
        *,
        allowed: BoolArray | None = None,
        threads: int = 0,
    ) -> SearchResult:
        """Search as `search` does, for queries given as lookup tables (Q, M, K) float32."""
        shape = (self._codebooks.num_codebooks, self._codebooks.codebook_size)
        tables = np.asarray(tables)
        if tables.ndim != 3 or tables.shape[1:] != shape or tables.dtype.kind != "f":
            raise ShapeError(
                f"tables is {seen_as(tables)}; expected (Q, {shape[0]}, {shape[1]}) floats. "
                "Use `Codebooks.lookup_tables`."
            )
        tables = np.ascontiguousarray(tables, dtype=np.float32)
        if not np.isfinite(tables).all():
            raise ShapeError(
                "tables holds values that are not finite in float32; expected none. "
                "Use `Codebooks.lookup_tables`."
            )
        return self._search(tables, top_k, allowed, threads)

    @property
    def _sorted_rows(self) -> int:
        return self._parts[-1].base + len(self._parts[-1].rows) if self._parts else 0

    def _append_to_tail(self, codes: CodeArray) -> None:
        needed = self._tail_rows + len(codes)
        if needed > len(self._tail):
            # Doubling: adding rows one by one copies each of them twice at most, on average.
            room = max(needed, min(_TAIL_ROWS, 2 * len(self._tail)))
            tail = np.empty((room, codes.shape[1]), dtype=np.uint8)
            tail[: self._tail_rows] = self._tail[: self._tail_rows]
            self._tail = tail
        self._tail[self._tail_rows : needed] = codes
        self._tail_rows = needed

    def _merge(self, codes: CodeArray) -> None:
        """Sort tail and new rows into a part, together with the parts that are not much larger."""
        from phpq.index.part import build_part, part_codes

        blocks = [self._tail[: self._tail_rows], codes]
        total = self._tail_rows + len(codes)
        parts = list(self._parts)
        while parts and len(parts[-1].rows) < min(_GROWTH * total, _PART_ROWS - total):
            part = parts.pop()
            blocks.insert(0, part_codes(part))
            total += len(part.rows)
        base = parts[-1].base + len(parts[-1].rows) if parts else 0
        joined = np.concatenate(blocks) if len(blocks) > 2 or self._tail_rows else codes
        size = self._codebooks.codebook_size
        for start in range(0, total, _PART_ROWS):
            block = np.ascontiguousarray(joined[start : start + _PART_ROWS])
            parts.append(build_part(block, base + start, codebook_size=size))
        self._parts, self._tail, self._tail_rows = parts, self._tail[:0].copy(), 0

    def _search(
        self, tables: FloatArray, top_k: int, allowed: BoolArray | None, threads: int
    ) -> SearchResult:
        if not isinstance(top_k, int | np.integer) or isinstance(top_k, bool) or top_k < 1:
            raise ShapeError(f"top_k={top_k!r} is not allowed; expected a whole number >= 1.")
        if not isinstance(threads, int) or threads < 0:
            raise ShapeError(
                f"threads={threads!r} is not allowed; expected a whole number >= 1, or 0 for "
                "every core."
            )
        from phpq.index import kernels

        mask = self._mask(allowed)
        # More places than rows would only be filled with -1: keep the heaps small.
        places = min(int(top_k), self.rows)
        scores = np.full((len(tables), places), -np.inf, dtype=np.float32)
        ids = np.full((len(tables), places), kernels.NO_ROW, dtype=np.int64)
        parts, tail, base = self._parts, self._tail[: self._tail_rows], self._sorted_rows
        many = allowed is not None and len(tables) >= _MANY_QUERIES
        if many and np.count_nonzero(mask) * _FEW_ALLOWED < self.rows:
            from phpq.index.part import restrict_part

            # One pass over all rows, and then each query looks at the few that are allowed.
            parts = [restrict_part(part, mask) for part in parts]

        def search_block(block: slice) -> None:
            heaps = (scores[block], ids[block])
            for part in parts:
                kernels.search_part(tables[block], part, mask, *heaps)
            if len(tail):
                kernels.search_rows(tables[block], tail, base, mask, *heaps)
            kernels.sort_heaps(*heaps)

        if places:
            _share(len(tables), threads, search_block)
        if places < top_k:
            missing = ((0, 0), (0, int(top_k) - places))
            ids = np.pad(ids, missing, constant_values=-1)
            scores = np.pad(scores, missing, constant_values=-np.inf)
        return SearchResult(ids, scores)

    def _mask(self, allowed: BoolArray | None) -> BoolArray:
        if allowed is None:
            return self._alive
        good = isinstance(allowed, np.ndarray) and allowed.dtype == np.bool_
        if not good or allowed.shape != (self.rows,):
            raise ShapeError(
                f"allowed is {seen_as(allowed)}; expected a bool array of shape ({self.rows},), "
                "one entry for each row ever added, removed ones too."
            )
        if self._alive.size:
            return allowed & self._alive[: self.rows]
        return np.ascontiguousarray(allowed)


def _grown(alive: BoolArray, rows: int) -> BoolArray:
    """Return marks for at least `rows` rows, an eighth more so that few additions copy them."""
    if rows <= len(alive):
        return alive
    result = np.ones(rows + rows // 8, dtype=np.bool_)
    result[: len(alive)] = alive
    return result


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share(queries: int, threads: int, search_block: Callable[[slice], None]) -> None:
    """Call `search_block` for slices of the queries, in as many threads as there is work for."""
    threads = min(threads or _cores(), queries)
    first = queries if threads <= 1 else 1 + queries // 64
    start = time.perf_counter()
    search_block(slice(0, first))
    left = queries - first
    if not left:
        return
    if (time.perf_counter() - start) / first * left < _THREADS_SECONDS:
        search_block(slice(first, queries))
        return
    # Four blocks per thread: queries differ in cost.
    edges = np.linspace(first, queries, min(left, 4 * threads) + 1).astype(int)
    blocks = [slice(a, b) for a, b in itertools.pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(search_block, blocks):  # raises what a thread raised
            pass
