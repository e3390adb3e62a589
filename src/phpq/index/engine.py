"""The exact index for learned codes: built once from codes, returns the best rows of queries.

Equal codes are scored once, and groups of codes that cannot enter the answer are skipped; scores
and order are those of a plain scan, bit for bit. Small searches are done by such a scan, which
needs no compiled code and no sorting. Also here: export of codes to faiss (`IndexPQ` with inner
product), and its product quantizer.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    QueryNorm,
    check_codes,
    pack_codes,
    seen_as,
    unpack_codes,
)
from phpq.errors import ShapeError, missing_extra

if TYPE_CHECKING:
    from phpq.index._kernels import Part

BoolArray = NDArray[np.bool_]

FEW_ROWS = 1 << 14  # a gallery of at most this many is scanned, however often it is searched
_SCAN_SCORES = 1 << 24  # scores by plain scans before rows are sorted for compiled searches
_PART_ROWS = 1 << 31  # row numbers inside a part are 32 bits wide
_THREADS_SECONDS = 2e-3  # work below which starting threads takes longer than it saves
_FEW_ALLOWED = 64  # if fewer than one row in 64 is allowed, those are copied first,
_MANY_QUERIES = 4  # for at least this many queries


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The best rows of each query, best first; equal scores in order of insertion."""

    ids: IntArray  # (Q, k) row numbers in order of insertion; -1 where the gallery has too few rows
    scores: FloatArray  # (Q, k) float32, descending; -inf beside a -1


class CodeIndex:
    """A gallery of codes in memory; rows are numbered in order of insertion. It never changes.

    Searches may run in several threads at once. Takes the codebooks that the codes were made with,
    and codes (N, M) uint8, to which it keeps no reference.
    """

    def __init__(self, codebooks: Codebooks, codes: CodeArray) -> None:
        check_codes("codes", codes, codebooks.num_codebooks, codebooks.codebook_size)
        self.codebooks = codebooks
        self._rows = len(codes)
        self._scanned = 0  # scores computed by plain scans
        # Either the codes in row order, or the parts made from them.
        self._held: CodeArray | list[Part] = codes.copy()
        self._building = threading.Lock()

    def __len__(self) -> int:
        return self._rows

    def build(self) -> Self:
        """Sort the rows for compiled searches now, not after some searches."""
        self._built()
        return self

    def _built(self) -> "list[Part]":
        from phpq.index._part import build_part

        with self._building:
            held = self._held
            if isinstance(held, np.ndarray):
                size = self.codebooks.codebook_size
                self._held = held = [
                    build_part(held[base : base + _PART_ROWS], base, size)
                    for base in range(0, len(held), _PART_ROWS)
                ]
        return held

    def memory_bytes(self) -> int:
        """Return the memory of codes, row numbers and tables of cells."""
        held = self._held
        if isinstance(held, np.ndarray):
            return held.nbytes
        from phpq.index._part import part_bytes

        return sum(part_bytes(part) for part in held)

    def codes(self) -> CodeArray:
        """Return the codes of all rows, (N, M) uint8 in row order."""
        held = self._held
        if isinstance(held, np.ndarray):
            return held.copy()
        from phpq.index._part import part_codes

        empty = np.empty((0, self.codebooks.num_codebooks), dtype=np.uint8)
        return np.concatenate([empty, *(part_codes(part) for part in held)])

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
            allowed: (N,) bool, the rows that may be returned; None allows all.
            threads: Threads that share the queries; 0 takes every core.
        """
        tables = self.codebooks.lookup_tables(queries, norm=query_norm)
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
        shape = (self.codebooks.num_codebooks, self.codebooks.codebook_size)
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
        good = isinstance(allowed, np.ndarray) and allowed.dtype == np.bool_
        if allowed is not None and not (good and allowed.shape == (self._rows,)):
            raise ShapeError(
                f"allowed is {seen_as(allowed)}; expected a bool array of shape ({self._rows},), "
                "one entry per row."
            )
        # Places beyond the rows are only filled with -1: keep the heaps small.
        places = min(int(top_k), self._rows)
        held = self._held
        if isinstance(held, np.ndarray) and self._scan_suffices(len(tables)):
            ids, scores = scan(tables, held, places, allowed)
        else:
            ids, scores = self._walk(tables, places, allowed, threads)
        if places < top_k:
            missing = ((0, 0), (0, int(top_k) - places))
            ids = np.pad(ids, missing, constant_values=-1)
            scores = np.pad(scores, missing, constant_values=-np.inf)
        return SearchResult(ids, scores)

    def _scan_suffices(self, queries: int) -> bool:
        """Count the scores of a search, and say whether a plain scan is the faster way."""
        scores = queries * self._rows
        if self._rows > FEW_ROWS:
            self._scanned += scores
            scores = self._scanned
        return scores <= _SCAN_SCORES

    def _walk(
        self, tables: FloatArray, places: int, allowed: BoolArray | None, threads: int
    ) -> tuple[IntArray, FloatArray]:
        """Search by compiled loops; returns ids and scores (Q, places)."""
        from phpq.index._cells import search_part
        from phpq.index._kernels import NO_ROW, sort_heaps

        parts = self._built()
        mask = np.empty(0, np.bool_) if allowed is None else np.ascontiguousarray(allowed)
        scores = np.full((len(tables), places), -np.inf, dtype=np.float32)
        ids = np.full((len(tables), places), NO_ROW, dtype=np.int64)
        many = allowed is not None and len(tables) >= _MANY_QUERIES
        if many and np.count_nonzero(mask) * _FEW_ALLOWED < self._rows:
            from phpq.index._part import restrict_part

            # One pass over all rows, and then each query scans only the allowed ones.
            parts = [restrict_part(part, mask) for part in parts]

        def search_block(block: slice) -> None:
            heaps = (scores[block], ids[block])
            for part in parts:
                search_part(tables[block], part, mask, *heaps)
            sort_heaps(*heaps)

        if places:
            _share(len(tables), threads, search_block)
        return ids, scores


def scan(
    tables: FloatArray, codes: CodeArray, places: int, allowed: BoolArray | None = None
) -> tuple[IntArray, FloatArray]:
    """Score all rows (N, M), or those allowed, for each of (Q, M, K) tables, in plain numpy.

    Sums go in the order of the codebooks, as those of the compiled loops. Returns (Q, places) ids,
    best first, ties ascending, -1 where there are fewer, and scores.
    """
    ids = np.full((len(tables), places), -1, np.int64)
    scores = np.full((len(tables), places), -np.inf, np.float32)
    rows = None if allowed is None else np.flatnonzero(allowed)
    columns = codes.T if rows is None else codes[rows].T
    for query, table in enumerate(tables if places else ()):
        sums = table[0][columns[0]]
        with np.errstate(over="ignore", invalid="ignore"):
            for entries, column in zip(table[1:], columns[1:], strict=True):
                sums += entries[column]
        hopeful = np.flatnonzero(sums == sums)  # sums that overflow may be NaN
        if places < len(hopeful):
            worst = np.partition(sums[hopeful], -places)[-places]
            hopeful = np.flatnonzero(sums >= worst)
        best = hopeful[np.argsort(-sums[hopeful], kind="stable")][:places]
        ids[query, : len(best)] = best if rows is None else rows[best]
        scores[query, : len(best)] = sums[best]
    return ids, scores


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


def _import_faiss(task: str) -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise missing_extra(error, task) from error
    return faiss


def to_faiss(codebooks: Codebooks, codes: CodeArray) -> Any:
    """Copy codewords and codes into a `faiss.IndexPQ` with the inner product.

    faiss does not normalise a query: pass `normalise_sub_vectors(queries, M)` to its `search` to
    get the scores of `CodeIndex`. Takes codes (N, M) uint8 and returns a trained index of N rows.
    """
    faiss = _import_faiss("Making an index of faiss")
    check_codes("codes", codes, codebooks.num_codebooks, codebooks.codebook_size)
    index = faiss.IndexPQ(
        codebooks.embedding_dim,
        codebooks.num_codebooks,
        codebooks.bits_per_index,
        faiss.METRIC_INNER_PRODUCT,
    )
    faiss.copy_array_to_vector(codebooks.codewords.ravel(), index.pq.centroids)
    index.is_trained = True
    packed = pack_codes(codes, codebooks.bits_per_index)
    faiss.copy_array_to_vector(np.ascontiguousarray(packed).ravel(), index.codes)
    index.ntotal = len(codes)
    return index


def fit_pq(
    rows: FloatArray, num_codebooks: int, *, codebook_size: int, seed: int
) -> tuple[FloatArray, CodeArray]:
    """Fit a product quantizer to rows (N, D) by k-means, without any normalisation.

    M divides D, K is a power of two up to 256; one row is enough. Returns centroids (M, K, d)
    float32 and the codes (N, M) uint8 of the rows.
    """
    faiss = _import_faiss("Fitting a product quantizer")
    if not 2 <= codebook_size <= 256 or codebook_size & (codebook_size - 1):
        raise ShapeError(
            f"codebook_size={codebook_size!r} is not allowed; use a power of two from 2 to 256."
        )
    if not len(rows) or rows.shape[1] % num_codebooks:
        raise ShapeError(
            f"The gallery has shape {rows.shape}; expected at least one row, and columns that "
            f"{num_codebooks} codebooks divide. Choose another number of codebooks."
        )
    dim = rows.shape[1] // num_codebooks
    bits = codebook_size.bit_length() - 1
    quantizer = faiss.ProductQuantizer(rows.shape[1], num_codebooks, bits)
    if len(rows) > codebook_size:
        quantizer.cp.seed = seed
        quantizer.cp.min_points_per_centroid = 1  # no warning: small galleries are our case
        quantizer.train(rows)
    else:
        # k-means is not defined; with a codeword for each row nothing is lost anyway.
        filled = rows[np.arange(codebook_size) % len(rows)]
        words = filled.reshape(codebook_size, num_codebooks, dim).transpose(1, 0, 2)
        faiss.copy_array_to_vector(np.ascontiguousarray(words).ravel(), quantizer.centroids)
    centroids = faiss.vector_to_array(quantizer.centroids)
    centroids = centroids.reshape(num_codebooks, codebook_size, dim)
    packed = quantizer.compute_codes(rows)
    return centroids, unpack_codes(packed, num_codebooks, bits_per_index=bits)


# Cells take K * K words per pair: with fewer entries, or 8 times as many rows, a scan is as fast.
CELL_GROUPS = 512
_WORD = 4  # bytes of a row number, a place and an entry of a list


@dataclass(frozen=True, slots=True)
class PartLayout:
    """The shape of a part."""

    entries: int  # codes that are stored and scored: one per distinct code, or one per row
    grouped: bool  # whether equal codes share an entry
    pairs: int  # of codebooks whose cells list their entries; 0: the part is only scanned
    memory_bytes: int  # of codes, places, row numbers, cells and lists


def part_layout(
    rows: int, distinct: int, *, num_codebooks: int, codebook_size: int = 256
) -> PartLayout:
    """Choose the layout of n >= 1 rows with a number of distinct codes of M indices below K.

    It takes at most n (1.5 M + 7) bytes, plus 4 (K^2 + 1) bytes per pair of codebooks.
    """
    # Codes that hardly repeat take less memory, and are scanned faster, row by row.
    grouped = distinct * (num_codebooks + _WORD) <= rows * num_codebooks
    entries = distinct if grouped else rows
    places = _WORD * (entries + 1) if grouped else 0
    used = _WORD * rows + entries * num_codebooks + places
    room = int(rows * (1.5 * num_codebooks + 7)) - used
    pairs = (num_codebooks + 1) // 2
    if room < _WORD * entries * (pairs - 1):
        pairs = 1
    if entries < CELL_GROUPS or rows <= 8 * CELL_GROUPS:
        pairs = 0
    used += _WORD * pairs * (codebook_size**2 + 1) + _WORD * max(0, pairs - 1) * entries
    return PartLayout(entries, grouped, pairs, used)


def most_bytes(rows: int, *, num_codebooks: int, codebook_size: int = 256) -> int:
    """Return the memory of an index of N rows in the worst case."""
    pairs = (num_codebooks + 1) // 2
    return int(rows * (1.5 * num_codebooks + 7)) + _WORD * pairs * (codebook_size**2 + 1)
