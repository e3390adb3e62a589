"""The efficiency figure: the time to answer 1,000 queries by codes and by exhaustive float search.

Both search the same gallery in this process, in turns, with the threads of numpy's matrix product
(set OPENBLAS_NUM_THREADS=1 or OMP_NUM_THREADS=1 before Python starts for the single-thread figure).
Embedding and normalising queries is the same work for both and is not timed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from timeit import timeit
from typing import Any

import numpy as np

from phpq.codes import Codebooks, FloatArray, QueryNorm, check_embeddings, normalise_sub_vectors
from phpq.errors import ShapeError
from phpq.index import CodeIndex, SearchResult

_BLOCK_SCORES = 1 << 22  # scores of one block of float search


@dataclass(frozen=True, slots=True)
class SearchTiming:
    """Seconds for one batch of queries, median of the repeats."""

    code_seconds: float  # lookup tables and exact search by codes
    float_seconds: float  # inner products with every gallery row, top-k
    queries: int
    gallery: int
    distinct_codes: int
    top_k: int
    repeats: int  # timed ones, after one that warms up
    threads: int  # of either, as set by the environment, else the cores this process may run on

    @property
    def ratio(self) -> float:
        """How many times faster the codes are."""
        return self.float_seconds / self.code_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"ratio": self.ratio}


def time_search(
    queries: FloatArray,
    gallery: FloatArray,
    *,
    codebooks: Codebooks,
    num_queries: int = 1000,
    top_k: int = 10,
    repeats: int = 5,
    query_norm: QueryNorm = "unit",
) -> SearchTiming:
    """Time both searches of queries (Q, D) over a gallery (N, D) in the same run.

    Queries are repeated in turn where there are fewer than `num_queries`; codes are made here,
    untimed.
    """
    rows = check_embeddings("gallery", gallery, codebooks.embedding_dim)
    vectors = check_embeddings("queries", queries, codebooks.embedding_dim)
    if not len(rows) or not len(vectors) or min(num_queries, top_k, repeats) < 1:
        raise ShapeError(
            f"Timing {num_queries!r} of {len(vectors)} queries over {len(rows)} rows, "
            f"top_k={top_k!r}, repeats={repeats!r}: each must be at least 1."
        )
    batch = vectors[np.arange(num_queries) % len(vectors)]
    codes = codebooks.encode(rows)
    index, threads = CodeIndex(codebooks, codes).build(), _threads()
    parts = codebooks.num_codebooks
    unit_rows = normalise_sub_vectors(rows, parts) if codebooks.unit else rows
    unit_batch = normalise_sub_vectors(batch, parts) if codebooks.unit else batch
    # Normalising queries is the same work for both, so it is done before.
    code_batch = unit_batch if query_norm == "unit" else batch
    searches: tuple[Callable[[], object], ...] = (
        lambda: index.search(code_batch, top_k, query_norm="raw", threads=threads),
        lambda: search_float(unit_batch, unit_rows, top_k=top_k),
    )
    code_seconds, float_seconds = time_in_turns(searches, repeats)
    return SearchTiming(
        code_seconds=code_seconds,
        float_seconds=float_seconds,
        queries=num_queries,
        gallery=len(rows),
        distinct_codes=len(np.unique(codes, axis=0)),
        top_k=top_k,
        repeats=repeats,
        threads=threads,
    )


def time_in_turns(searches: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of each search.

    Each repeat times every search once, so that load on the machine affects all alike. An untimed
    repeat warms up caches, threads and compiled code.
    """
    times = [[timeit(search, number=1) for search in searches] for _ in range(repeats + 1)]
    return [statistics.median(mine) for mine in zip(*times[1:], strict=True)]


def search_float(queries: FloatArray, gallery: FloatArray, *, top_k: int = 10) -> SearchResult:
    """Search (N, D) floats exhaustively for (Q, D): the best min(k, N) rows of each, best first."""
    count = min(top_k, len(gallery))
    ids = np.empty((len(queries), count), dtype=np.int64)
    scores = np.empty((len(queries), count), dtype=np.float32)
    step = max(1, _BLOCK_SCORES // len(gallery))
    for start in range(0, len(queries), step):
        block = queries[start : start + step] @ gallery.T
        np.negative(block, out=block)  # partition is ascending
        best = np.argpartition(block, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(block, best, axis=1)
        order = np.lexsort((best, values), axis=1)
        ids[start : start + step] = np.take_along_axis(best, order, axis=1)
        scores[start : start + step] = -np.take_along_axis(values, order, axis=1)
    return SearchResult(ids=ids, scores=scores)


def _threads() -> int:
    # Read only to be reported beside the figure.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return available_cores()


def available_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
