"""Galleries that are built and searched: our codes, faiss indexes, lists of classes, re-ranking.

An `Engine` returns the best rows of queries, scores every row for the measures, and counts its
bytes. Rows are added in blocks, so that synthetic floats are never in memory as a whole. faiss is
imported when it is first used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.additive import AdditiveCodebooks
from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm, group_codes, score_codes
from phpq.evaluation.timing import available_cores, search_float
from phpq.index import CodeIndex
from phpq.index.engine import part_layout

Block = tuple[FloatArray, IntArray]  # rows (n, D) and their class numbers (n,)
Blocks = Iterable[Block]
Transform = Callable[[FloatArray], FloatArray]  # of (n, D) rows or queries, before multiplying

CANDIDATES = 100  # rows that are re-ranked, and hits of an index that cannot score all rows
_QUERY_BLOCK = 64  # queries per task of a thread


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a built gallery, without the names of images, which are the same for all."""

    memory: int  # codes or floats, row numbers, graph, lists, codebooks
    disk: int  # of the same as a file, and of floats that are kept beside it
    fixed: int  # part of both that does not grow with the rows: codebooks, rotations, class means
    tables: int = 0  # part of the memory alone that does not grow either

    def memory_at(self, rows: int, *, of: int) -> float:
        """Extrapolate the memory from `of` rows to another number of rows."""
        constant = self.fixed + self.tables
        return constant + (self.memory - constant) / max(of, 1) * rows

    def disk_at(self, rows: int, *, of: int) -> float:
        """Extrapolate the bytes on disk likewise."""
        return self.fixed + (self.disk - self.fixed) / max(of, 1) * rows


class Engine(ABC):
    """A gallery that can be searched."""

    rows: int

    @abstractmethod
    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Return the best rows (Q, k), best first; -1 if there are fewer."""

    @abstractmethod
    def scores(self, queries: FloatArray) -> FloatArray:
        """Score every row: (q, N) float32; -inf for rows that the engine does not return."""

    @abstractmethod
    def footprint(self) -> Footprint:
        """Count the bytes."""

    def grow(self, rows: int) -> None:
        """Become a gallery of `rows` rows that repeat those it has.

        Only for searches that take as long whatever the rows are: scans, and lists of classes.
        """
        raise NotImplementedError


class FloatEngine(Engine):
    """Inner products with every row by numpy, for machines without faiss."""

    def __init__(self, blocks: Blocks) -> None:
        self.floats = np.concatenate([rows for rows, _ in blocks])
        self.rows = len(self.floats)

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Multiply blocks of queries, one per thread."""
        find = lambda part: search_float(part, self.floats, top_k=top_k).ids  # noqa: E731
        return _search_blocks(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Return all inner products."""
        products: FloatArray = queries @ self.floats.T
        return products

    def footprint(self) -> Footprint:
        """Count four bytes per number."""
        return Footprint(self.floats.nbytes, self.floats.nbytes, 0)


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
        """Encode the rows, with the labels that `names` returns for class numbers, if given."""

        def encode(rows: FloatArray, labels: IntArray) -> NDArray[np.uint8]:
            if names is not None and isinstance(codebooks, AdditiveCodebooks):
                return codebooks.encode(rows, names(labels))
            return codebooks.encode(rows)

        self.codebooks, self.norm = codebooks, norm
        self.codes = np.concatenate(list(_map_blocks(encode, blocks)))
        self.rows = len(self.codes)
        self.index = CodeIndex(codebooks, self.codes).build()

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Search the index by blocks of queries."""

        def find(part: FloatArray) -> IntArray:
            return self.index.search(part, top_k, query_norm=self.norm, threads=1).ids

        return _search_blocks(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Add up table entries."""
        return score_codes(self.codebooks.lookup_tables(queries, norm=self.norm), self.codes)

    def footprint(self) -> Footprint:
        """Count the index and the codebooks; the file holds codes without row numbers."""
        books = self.codebooks
        own = isinstance(books, AdditiveCodebooks)
        fixed = books.memory_bytes() if own else books.codewords.nbytes  # type: ignore[attr-defined]
        packed = self.rows * -(-books.bits // 8)
        shape = {"num_codebooks": books.num_codebooks, "codebook_size": books.codebook_size}
        distinct = len(group_codes(self.codes).sizes)
        # The tables of the index do not grow with the rows.
        cells = 4 * part_layout(self.rows, distinct, **shape).pairs * (books.codebook_size**2 + 1)
        return Footprint(self.index.memory_bytes() + fixed, packed + fixed, fixed, cells)


class FaissEngine(Engine):
    """Any faiss index over floats; its file holds all that it keeps in memory."""

    def __init__(self, index: Any, blocks: Blocks, *, lists: bool = False) -> None:
        """Add the rows to a trained, empty index; `lists` if it cannot rank all of them."""
        self.index, self.lists = index, lists
        self.fixed = _written_bytes(index)
        for rows, _ in blocks:
            index.add(np.ascontiguousarray(rows))
        self.rows, self.size = int(index.ntotal), _written_bytes(index)

    def grow(self, rows: int) -> None:
        """Repeat the codes of an index that scans all of them."""
        import faiss

        turned = isinstance(self.index, faiss.IndexPreTransform)
        flat: Any = faiss.downcast_index(self.index.index) if turned else self.index
        codes = faiss.vector_to_array(flat.codes).reshape(self.rows, -1)
        for start in range(self.rows, rows, self.rows):
            flat.add_sa_codes(codes[: rows - start])
        self.index.ntotal = flat.ntotal
        self.rows, self.size = rows, _written_bytes(self.index)

    def search(self, queries: FloatArray, top_k: int, *, threads: int) -> IntArray:
        """Search by the threads of faiss."""
        with faiss_threads(threads):
            ids: IntArray = self.index.search(np.ascontiguousarray(queries), top_k)[1]
        return ids

    def scores(self, queries: FloatArray) -> FloatArray:
        """Search for all rows, or for the first hits if the index cannot rank all."""
        count = min(CANDIDATES, self.rows) if self.lists else self.rows
        values, ids = self.index.search(np.ascontiguousarray(queries), count)
        result = np.full((len(queries), self.rows), -np.inf, np.float32)
        query, place = np.nonzero(ids >= 0)
        result[query, ids[query, place]] = values[query, place]
        return result

    def footprint(self) -> Footprint:
        """Count the bytes of the file that faiss would write."""
        return Footprint(self.size, self.size, self.fixed)


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Set the threads of faiss for a while: OpenMP shares the setting with other libraries."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class SignEngine(Engine):
    """The sign of each centred number as one bit; Hamming distance by faiss."""

    def __init__(self, mean: FloatArray, blocks: Blocks) -> None:
        import faiss

        self.mean = mean
        self.index: Any = faiss.IndexBinaryFlat(8 * -(-len(mean) // 8))
        for rows, _ in blocks:
            self.index.add(self._pack(rows))
        self.rows = int(self.index.ntotal)

    def grow(self, rows: int) -> None:
        """Repeat the bits."""
        import faiss

        bits = faiss.vector_to_array(self.index.xb).reshape(self.rows, -1)
        for start in range(self.rows, rows, self.rows):
            self.index.add(bits[: rows - start])
        self.rows = rows

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

    def footprint(self) -> Footprint:
        """Count the bits and the mean."""
        size = self.rows * self.index.code_size + self.mean.nbytes
        return Footprint(size, size, self.mean.nbytes)


class ClassEngine(Engine):
    """Classifies the query, then lists the rows of the best class, of the next, and so on."""

    def __init__(self, weights: FloatArray, bias: FloatArray, blocks: Blocks) -> None:
        """Take a linear classifier, (C, D) and (C,), and list rows by their class numbers."""
        self.weights, self.bias = weights, bias
        self._hold(np.concatenate([labels for _, labels in blocks]).astype(np.int32))

    def _hold(self, labels: NDArray[np.int32]) -> None:
        self.labels, self.rows = labels, len(labels)
        order = np.argsort(labels, kind="stable")
        self.edges = np.searchsorted(labels[order], np.arange(len(self.weights) + 1))
        self.order = order.astype(np.int32)

    def grow(self, rows: int) -> None:
        """List more rows in each class, in the same shares."""
        self._hold(np.resize(self.labels, rows))

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

        return _search_blocks(queries, find, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Give each row the score of its class: those of one class are tied."""
        by_class = queries @ self.weights.T + self.bias
        return np.ascontiguousarray(by_class[:, self.labels], np.float32)

    def footprint(self) -> Footprint:
        """Count the classifier, and a row number in the list of its class."""
        fixed = self.weights.nbytes + self.bias.nbytes + self.edges.nbytes
        return Footprint(fixed + self.order.nbytes, fixed + self.order.nbytes, fixed)


class RerankedEngine(Engine):
    """The first hundred hits of another engine, re-ranked by floats that are kept on disk."""

    def __init__(
        self, first: Engine, blocks: Blocks, file: Path, *, row_map: Transform, query_map: Transform
    ) -> None:
        """Write the rows as float16 to a new file; the maps are applied before multiplying."""
        self.first, self.rows, self.row_map, self.query_map = first, first.rows, row_map, query_map
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
        vectors = self.query_map(queries)

        def order(part: slice) -> IntArray:
            ids = candidates[part]
            best = np.argsort(-self._products(vectors[part], ids), axis=1, kind="stable")[:, :top_k]
            return np.take_along_axis(ids, best, axis=1)

        slices = [slice(s, s + _QUERY_BLOCK) for s in range(0, len(queries), _QUERY_BLOCK)]
        return _run_blocks(slices, order, threads)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Raise the scores of candidates above all others, in the order of their floats."""
        scores = self.first.scores(queries)
        count = min(CANDIDATES, self.rows)
        # Of equal scores the earlier row comes first, as in the index.
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int64)
        products = self._products(self.query_map(queries), ids)
        highest = np.where(np.isfinite(scores), scores, 0).max(axis=1, keepdims=True)
        lift = highest + 1 - products.min(axis=1, keepdims=True)
        np.put_along_axis(scores, ids, products + lift, axis=1)
        return scores

    def footprint(self) -> Footprint:
        """Add the floats on disk."""
        first = self.first.footprint()
        return replace(first, disk=first.disk + self.size)

    def _products(self, queries: FloatArray, ids: IntArray) -> FloatArray:
        rows = self.row_map(self.floats[np.maximum(ids, 0).ravel()].astype(np.float32))
        rows = rows.reshape(*ids.shape, -1)
        products: FloatArray = np.einsum("qkd,qd->qk", rows, queries, optimize=True)
        return np.where(ids >= 0, products, -np.inf).astype(np.float32)


def _written_bytes(index: Any) -> int:
    """Count the bytes of a faiss index as a file, without a copy of it in memory."""
    import faiss

    sizes: list[int] = []
    writer = faiss.PyCallbackIOWriter(  # type: ignore[attr-defined]  # incomplete stubs
        lambda data: sizes.append(len(data)), 1 << 20
    )
    faiss.write_index(index, writer)
    del writer  # flushes the last bytes
    return sum(sizes)


def _search_blocks(
    queries: FloatArray, find: Callable[[FloatArray], IntArray], threads: int
) -> IntArray:
    """Run `find` on blocks of queries, in several threads."""
    slices = [slice(s, s + _QUERY_BLOCK) for s in range(0, len(queries), _QUERY_BLOCK)]
    return _run_blocks(slices, lambda part: find(queries[part]), threads)


def _run_blocks(slices: list[slice], work: Callable[[slice], IntArray], threads: int) -> IntArray:
    if threads <= 1 or len(slices) == 1:
        return np.concatenate([work(part) for part in slices])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(work, slices)))


def _map_blocks(
    encode: Callable[..., NDArray[np.uint8]], blocks: Blocks
) -> Iterator[NDArray[np.uint8]]:
    """Yield the codes of blocks, which all cores make while the next blocks are read."""
    left, cores = iter(blocks), available_cores()
    for block in left:  # the first compiles and fills caches
        yield encode(*block)
        break
    with ThreadPoolExecutor(cores) as pool:
        waiting = deque[Future[NDArray[np.uint8]]]()
        for block in left:
            waiting.append(pool.submit(encode, *block))
            if len(waiting) > cores:  # floats of few blocks are in memory
                yield waiting.popleft().result()
        for one in waiting:
            yield one.result()


def single_block(rows: FloatArray, labels: IntArray) -> Iterator[Block]:
    """Yield a gallery that is in memory as a single block."""
    yield rows, labels
