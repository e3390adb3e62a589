"""What `search.py` compares with: faiss indexes over the same codes, and a scan in numpy.

Each maker takes codebooks and codes (N, M) uint8 and returns an object whose `search` takes queries
(Q, D) float32 and the number of rows wanted, and returns scores and ids (Q, k). Some search other
things than these codes, of as many bytes or of floats: their makers say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import faiss
import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, group_codes, score_codes
from phpq.index import to_faiss

Search = Callable[[FloatArray, int], tuple[FloatArray, IntArray]]

FLAT_ROWS = 20_000  # the float index is timed on so many rows, and the time multiplied
FLAT_DIM = 1536  # the embedding of our CUB runs
RABITQ_ROWS = 100_000  # as many for RaBitQ, which reads 200 bytes of each
_LIST_SAMPLE = 10_000  # codes that the lists of IVFPQ are learned from
_NUMPY_ROWS = 1 << 19  # rows of one block of the scan


@dataclass(frozen=True, slots=True)
class InvertedLists:
    """An IVFPQ at the fewest probes that reach the recall.

    Attributes:
        index: The faiss index, its `nprobe` set.
        recall: Share of the exact top-k, by score, that it finds.
        probes: Lists it looks into.
    """

    index: Any
    recall: float
    probes: int


def fast_scan(rows: int, num_codebooks: int, *, seed: int) -> tuple[Any, FloatArray]:
    """Make a 4-bit IndexPQFastScan of as many bytes per row, and queries for it.

    Its codes are other codes: M bytes hold 2 M indices of 16 codewords. They are drawn at random,
    since the time of its scan does not depend on them.
    """
    rng = np.random.default_rng(seed)
    dim = 2 * num_codebooks * 4
    plain = faiss.IndexPQ(dim, 2 * num_codebooks, 4, faiss.METRIC_INNER_PRODUCT)
    words = rng.standard_normal(dim * 16).astype(np.float32)
    faiss.copy_array_to_vector(words, plain.pq.centroids)
    plain.is_trained = True
    codes = rng.integers(0, 256, rows * num_codebooks, dtype=np.uint8)
    faiss.copy_array_to_vector(codes, plain.codes)
    plain.ntotal = rows
    packed: Any = faiss.IndexPQFastScan(plain)  # type: ignore[arg-type]  # incomplete stubs
    return packed, rng.standard_normal((16, dim)).astype(np.float32)


def flat_floats(*, seed: int) -> tuple[Any, FloatArray]:
    """Make an IndexFlatIP of `FLAT_ROWS` float embeddings, and queries for it."""
    rng = np.random.default_rng(seed)
    index = faiss.IndexFlatIP(FLAT_DIM)
    index.add(rng.standard_normal((FLAT_ROWS, FLAT_DIM), dtype=np.float32))
    return index, rng.standard_normal((16, FLAT_DIM), dtype=np.float32)


class DistinctCodes:
    """A `faiss.IndexPQ` of each code once, and the rows of each: grouping alone, without our walk.

    Exact, as `IndexPQ` over all rows is: the best k codes hold the best k rows.
    """

    def __init__(self, codebooks: Codebooks, codes: CodeArray) -> None:
        groups = group_codes(codes)
        self._index = to_faiss(codebooks, groups.codes)
        self._rows = groups.group_of_row.argsort(kind="stable")
        self._first = np.concatenate([[0], groups.sizes.cumsum()])

    def search(self, queries: FloatArray, top_k: int) -> tuple[FloatArray, IntArray]:
        """Find the best codes, and write out their rows until there are enough."""
        best, found = self._index.search(queries, min(top_k, len(self._first) - 1))
        scores = np.full((len(queries), top_k), -np.inf, np.float32)
        rows = np.full((len(queries), top_k), -1, np.int64)
        for query, groups in enumerate(found):
            first, sizes = self._first[groups], self._first[groups + 1] - self._first[groups]
            ends = np.minimum(sizes.cumsum(), top_k)
            counts = np.diff(ends, prepend=0)  # of rows that are taken of each code
            places = np.arange(ends[-1]) + np.repeat(first - (ends - counts), counts)
            rows[query, : ends[-1]] = self._rows[places]
            scores[query, : ends[-1]] = np.repeat(best[query], counts)
        return scores, rows


@cache
def rabitq(*, seed: int) -> tuple[Any, FloatArray]:
    """Make an `IndexRaBitQFastScan` of `RABITQ_ROWS` random embeddings, and queries for it.

    One bit a dimension and two factors: 200 bytes of a row of 1,536 floats. Its scan takes as long
    whatever the embeddings are.
    """
    rng = np.random.default_rng(seed)
    index: Any = faiss.IndexRaBitQFastScan(FLAT_DIM, faiss.METRIC_INNER_PRODUCT)
    sample = rng.standard_normal((FLAT_ROWS, FLAT_DIM), dtype=np.float32)
    index.train(sample)
    for _ in range(0, RABITQ_ROWS, FLAT_ROWS):
        index.add(rng.standard_normal((FLAT_ROWS, FLAT_DIM), dtype=np.float32))
    return index, sample[:16]


def inverted_lists(
    codebooks: Codebooks,
    codes: CodeArray,
    *,
    queries: FloatArray,
    worst: FloatArray,
    top_k: int,
    recall: float = 0.99,
) -> InvertedLists:
    """Make an IndexIVFPQ of the same codes and set its probes by the recall it reaches.

    The codewords are unit vectors of the axes, so a product with a list's centre is a sum of table
    entries and each distinct code is assigned once.

    Args:
        codebooks: M codebooks whose codewords are the axes: d = K.
        codes: (N, M) uint8.
        queries: (Q, D) float32.
        worst: (Q,) float32, the k-th score of the exact answer.
        top_k: k.
        recall: The least share of the answer to be found.
    """
    books, words, sub_dim = codebooks.codewords.shape
    lists = 1024 if len(codes) > 2_000_000 else 256
    rng = np.random.default_rng(0)
    sample = codebooks.decode(codes[rng.integers(0, len(codes), _LIST_SAMPLE)])
    means = faiss.Kmeans(books * sub_dim, lists, niter=5, seed=1, min_points_per_centroid=1)
    means.train(sample)
    quantizer = faiss.IndexFlatIP(books * sub_dim)
    centres: Any = means.centroids
    quantizer.add(centres)
    index: Any = faiss.IndexIVFPQ(
        quantizer, books * sub_dim, lists, books, 8, faiss.METRIC_INNER_PRODUCT
    )
    index.by_residual = False
    faiss.copy_array_to_vector(codebooks.codewords.ravel(), index.pq.centroids)
    index.is_trained = True
    groups = group_codes(codes)
    tables = np.ascontiguousarray(centres.reshape(lists, books, words))
    halves = np.square(centres).sum(axis=1) / 2
    nearest = np.empty(len(groups.codes), dtype=np.int64)
    for start in range(0, len(groups.codes), 1 << 14):
        block = slice(start, start + (1 << 14))
        nearest[block] = (score_codes(tables, groups.codes[block]) - halves[:, None]).argmax(axis=0)
    list_of_row = nearest[groups.group_of_row]
    order = list_of_row.argsort(kind="stable").astype(np.int64)
    edges = np.searchsorted(list_of_row[order], np.arange(lists + 1))
    for number in range(lists):
        rows = order[edges[number] : edges[number + 1]]
        part = np.ascontiguousarray(codes[rows])
        if len(rows):
            index.invlists.add_entries(
                number, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(part)
            )
    index.ntotal = len(codes)
    index.nprobe = 1
    while True:
        scores, _ = index.search(queries, top_k)
        reached = float((scores >= worst[:, None] - 1e-5).mean())
        if reached >= recall or index.nprobe == lists:
            return InvertedLists(index, recall=reached, probes=int(index.nprobe))
        index.nprobe = min(lists, 2 * index.nprobe)


def numpy_scan(tables: FloatArray, codes: CodeArray, top_k: int) -> tuple[FloatArray, IntArray]:
    """Score every row, (1, M, K) float32 in; the reference for scores and order of the rows."""
    scores = np.empty(len(codes), dtype=np.float32)
    for start in range(0, len(codes), _NUMPY_ROWS):
        block = slice(start, start + _NUMPY_ROWS)
        scores[block] = score_codes(tables, codes[block])[0]
    worst = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    rows = np.flatnonzero(scores >= worst)
    rows = rows[np.lexsort((rows, -scores[rows]))][:top_k].astype(np.int64)
    return scores[rows], rows
