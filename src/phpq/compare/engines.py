"""Built galleries that can be searched: our codes, faiss indexes, lists of classes, re-ranking.

Each is one `Engine`: the best rows of queries, a score of every row for the measures, and what it
weighs. Rows are added by blocks, so that a gallery of floats that is made up block by block need
not be in memory as a whole. faiss is imported when an engine of it is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.additive import AdditiveCodebooks
from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm, group_codes, score_codes
from phpq.evaluation.timing import search_float
from phpq.index import CodeIndex
from phpq.index.engine import part_layout

Block = tuple[FloatArray, IntArray]  # rows (n, D) and their class numbers (n,)
Blocks = Iterable[Block]
Place = Callable[[FloatArray], FloatArray]  # where (n, D) rows or queries are multiplied

CANDIDATES = 100  # rows whose kept floats are looked at, and hits of an index that gives only lists
_SHARE = 64  # queries that a thread takes at once


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes of a built gallery; external ids are the same for all and are not counted."""

    memory: int  # codes or floats, row numbers, graph, lists, codebooks
    disk: int  # of the same as a file, and of floats that are kept beside it
    fixed: int  # of the file, what does not grow with the rows: codebooks, rotations, class means
    tables: int = 0  # of the memory, what does not grow either and is in no file

    def memory_at(self, rows: int, *, of: int) -> float:
        """Return the memory that another number of rows would take, from that `of` so many."""
        constant = self.fixed + self.tables
        return constant + (self.memory - constant) / max(of, 1) * rows

    def disk_at(self, rows: int, *, of: int) -> float:
        """Return the bytes on disk likewise."""
        return self.fixed + (self.disk - self.fixed) / max(of, 1) * rows


class Engine(ABC):
    """One gallery, built."""

    rows: int

    @abstractmethod
    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Return the best rows (Q, k), best first; -1 where there are no more."""

    @abstractmethod
    def scores(self, queries: FloatArray) -> FloatArray:
        """Score every row: (q, N) float32; -inf for rows that this way to search never returns."""

    @abstractmethod
    def weigh(self) -> Weight:
        """Count the bytes."""


class FloatEngine(Engine):
    """Inner products with every row, in numpy: what is left where there is no faiss."""

    def __init__(self, blocks: Blocks) -> None:
        self.floats = np.concatenate([rows for rows, _ in blocks])
        self.rows = len(self.floats)

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Share the queries between threads; each multiplies with one."""
        find = lambda part: search_float(part, self.floats, top_k=top_k).ids  # noqa: E731
        return _shared(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Return all inner products."""
        products: FloatArray = queries @ self.floats.T
        return products

    def weigh(self) -> Weight:
        """Count four bytes a number."""
        return Weight(self.floats.nbytes, self.floats.nbytes, 0)


class CodeEngine(Engine):
    """Codes of a model's or a gallery's codebooks, in the exact index of this package."""

    def __init__(
        self,
        codebooks: Codebooks,
        blocks: Blocks,
        *,
        norm: QueryNorm = "raw",
        names: Callable[[IntArray], list[str | None]] | None = None,
    ) -> None:
        """Encode the rows; `names` gives the labels of class numbers that the codes may use."""

        def encode(rows: FloatArray, labels: IntArray) -> NDArray[np.uint8]:
            if names is not None and isinstance(codebooks, AdditiveCodebooks):
                return codebooks.encode(rows, names(labels))
            return codebooks.encode(rows)

        self.codebooks, self.norm = codebooks, norm
        self.codes = np.concatenate([encode(*block) for block in blocks])
        self.rows = len(self.codes)
        self.index = CodeIndex(codebooks, self.codes).build()

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Make lookup tables, and walk the cells."""

        def find(part: FloatArray) -> IntArray:
            return self.index.search(part, top_k, query_norm=self.norm, threads=1).ids

        return _shared(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Add up table entries."""
        return score_codes(self.codebooks.lookup_tables(queries, norm=self.norm), self.codes)

    def weigh(self) -> Weight:
        """Count the index and the codebooks; the file holds codes without row numbers."""
        books = self.codebooks
        own = isinstance(books, AdditiveCodebooks)
        fixed = books.memory_bytes() if own else books.codewords.nbytes  # type: ignore[attr-defined]
        packed = self.rows * -(-books.bits // 8)
        shape = {"num_codebooks": books.num_codebooks, "codebook_size": books.codebook_size}
        distinct = len(group_codes(self.codes).sizes)
        # Tables of cells are as large for a million rows as for a thousand.
        cells = 4 * part_layout(self.rows, distinct, **shape).pairs * (books.codebook_size**2 + 1)
        return Weight(self.index.memory_bytes() + fixed, packed + fixed, fixed, cells)


class FaissEngine(Engine):
    """Any index of faiss over floats; its file has all that it keeps in memory."""

    def __init__(self, index: Any, blocks: Blocks, *, lists: bool = False) -> None:
        """Add the rows to a trained, empty index; `lists` says that it ranks only some of them."""
        self.index, self.lists = index, lists
        self.fixed = _written_bytes(index)
        for rows, _ in blocks:
            index.add(np.ascontiguousarray(rows))
        self.rows, self.size = int(index.ntotal), _written_bytes(index)

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Let faiss share the queries between its own threads."""
        with faiss_threads(threads):
            ids: IntArray = self.index.search(np.ascontiguousarray(queries), top_k)[1]
        return ids

    def scores(self, queries: FloatArray) -> FloatArray:
        """Ask for all rows, or for the first hits where the index has no more to say."""
        count = min(CANDIDATES, self.rows) if self.lists else self.rows
        values, ids = self.index.search(np.ascontiguousarray(queries), count)
        result = np.full((len(queries), self.rows), -np.inf, np.float32)
        query, place = np.nonzero(ids >= 0)
        result[query, ids[query, place]] = values[query, place]
        return result

    def weigh(self) -> Weight:
        """Count what faiss would write."""
        return Weight(self.size, self.size, self.fixed)


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Give faiss that many threads for a while: other libraries of the process have the same."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class SignEngine(Engine):
    """One bit a number, the sign around the gallery's mean; Hamming distance by faiss."""

    def __init__(self, mean: FloatArray, blocks: Blocks) -> None:
        import faiss

        self.mean = mean
        self.index = faiss.IndexBinaryFlat(8 * -(-len(mean) // 8))
        for rows, _ in blocks:
            self.index.add(self._pack(rows))
        self.rows = int(self.index.ntotal)

    def _pack(self, rows: FloatArray) -> NDArray[np.uint8]:
        return np.packbits(rows >= self.mean, axis=1)

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Let faiss count bits."""
        with faiss_threads(threads):
            ids: IntArray = self.index.search(self._pack(queries), top_k)[1]
        return ids

    def scores(self, queries: FloatArray) -> FloatArray:
        """Return minus the Hamming distance of every row."""
        values, ids = self.index.search(self._pack(queries), self.rows)
        result = np.empty((len(queries), self.rows), np.float32)
        np.put_along_axis(result, ids, -values.astype(np.float32), axis=1)
        return result

    def weigh(self) -> Weight:
        """Count the bits and the mean."""
        size = self.rows * self.index.code_size + self.mean.nbytes
        return Weight(size, size, self.mean.nbytes)


class ClassEngine(Engine):
    """Classify the query, then list the rows of the likeliest class, of the next, and so on."""

    def __init__(self, weights: FloatArray, bias: FloatArray, blocks: Blocks) -> None:
        """Take a linear classifier: (C, D) and (C,); a row is listed under its class number."""
        self.weights, self.bias = weights, bias
        self.labels = np.concatenate([labels for _, labels in blocks]).astype(np.int32)
        self.rows = len(self.labels)
        order = np.argsort(self.labels, kind="stable").astype(np.int64)
        edges = np.searchsorted(self.labels[order], np.arange(len(weights) + 1))
        self.order, self.edges = order.astype(np.int32), edges

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Take rows of the best classes until there are enough."""

        def find(part: FloatArray) -> IntArray:
            found = np.full((len(part), top_k), -1, np.int64)
            for number, scores in enumerate(part @ self.weights.T + self.bias):
                place = 0
                while place < min(top_k, self.rows):
                    best = int(scores.argmax())
                    rows = self.order[self.edges[best] : self.edges[best + 1]][: top_k - place]
                    found[number, place : place + len(rows)] = rows
                    place += len(rows)
                    scores[best] = -np.inf
            return found

        return _shared(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Give each row the score of its class: those of one class are tied."""
        by_class = queries @ self.weights.T + self.bias
        return np.ascontiguousarray(by_class[:, self.labels], np.float32)

    def weigh(self) -> Weight:
        """Count the classifier, and a row number in the list of its class."""
        fixed = self.weights.nbytes + self.bias.nbytes + self.edges.nbytes
        return Weight(fixed + self.order.nbytes, fixed + self.order.nbytes, fixed)


class RescoredEngine(Engine):
    """The first hundred hits of another engine, ordered by floats that are kept on disk."""

    def __init__(
        self, first: Engine, blocks: Blocks, file: Path, *, kept: Place, asked: Place
    ) -> None:
        """Keep float16 rows in a new file.

        What is multiplied is what `kept` makes of them, and `asked` of queries.
        """
        self.first, self.kept, self.asked, self.rows = first, kept, asked, first.rows
        with file.open("wb") as stream:
            for rows, _ in blocks:
                stream.write(rows.astype(np.float16).tobytes())
        size = file.stat().st_size
        shape = (self.rows, size // 2 // self.rows)
        self.floats: NDArray[np.float16] = np.memmap(file, np.float16, "r", shape=shape)
        self.size = size

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Find candidates, read their floats, sort."""
        candidates = self.first.search(queries, max(top_k, CANDIDATES), threads=threads)
        asked = self.asked(queries)

        def order(part: slice) -> IntArray:
            ids = candidates[part]
            best = np.argsort(-self._products(asked[part], ids), axis=1, kind="stable")[:, :top_k]
            return np.take_along_axis(ids, best, axis=1)

        slices = [slice(s, s + _SHARE) for s in range(0, len(queries), _SHARE)]
        return _joined(slices, order, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Lift the candidates above all other rows, in the order of their floats."""
        scores = self.first.scores(queries)
        count = min(CANDIDATES, self.rows)
        # As an index serves them: of equal scores the earlier row comes first.
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int64)
        products = self._products(self.asked(queries), ids)
        highest = np.where(np.isfinite(scores), scores, 0).max(axis=1, keepdims=True)
        lift = highest + 1 - products.min(axis=1, keepdims=True)
        np.put_along_axis(scores, ids, products + lift, axis=1)
        return scores

    def weigh(self) -> Weight:
        """Count the floats on disk."""
        first = self.first.weigh()
        return replace(first, disk=first.disk + self.size)

    def _products(self, asked: FloatArray, ids: IntArray) -> FloatArray:
        kept = self.kept(self.floats[np.maximum(ids, 0).ravel()].astype(np.float32))
        kept = kept.reshape(*ids.shape, -1)
        products: FloatArray = np.einsum("qkd,qd->qk", kept, asked, optimize=True)
        return np.where(ids >= 0, products, -np.inf).astype(np.float32)


def _written_bytes(index: Any) -> int:
    """Count the bytes of an index of faiss as a file, without holding a copy of it."""
    import faiss

    sizes: list[int] = []
    writer = faiss.PyCallbackIOWriter(  # type: ignore[attr-defined]  # incomplete stubs
        lambda data: sizes.append(len(data)), 1 << 20
    )
    faiss.write_index(index, writer)
    del writer  # it keeps the last bytes until it goes
    return sum(sizes)


def _shared(queries: FloatArray, find: Callable[[FloatArray], IntArray], threads: int) -> IntArray:
    """Find hits by blocks of queries, in several threads."""
    slices = [slice(s, s + _SHARE) for s in range(0, len(queries), _SHARE)]
    return _joined(slices, lambda part: find(queries[part]), threads)


def _joined(slices: list[slice], work: Callable[[slice], IntArray], threads: int) -> IntArray:
    if threads <= 1 or len(slices) == 1:
        return np.concatenate([work(part) for part in slices])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(work, slices)))


def whole(rows: FloatArray, labels: IntArray) -> Iterator[Block]:
    """Give a gallery that is in memory as its only block."""
    yield rows, labels
