"""Orders equal scores by float scores: finds the rows of an answer that have to be ordered.

The rows of a tie, in order of insertion, are cut into blocks, and only ordered inside a block. So
the order is the same on every page, and a page reads a bounded number of embeddings however many
images share a code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray, QueryNorm

TIE_ROWS = 256  # per block
Block = tuple[int, slice]  # a query, and columns of its answer


def tied_blocks(scores: FloatArray, shown: slice) -> Iterator[slice]:
    """Yield the blocks of at least two equal scores that have a row on a page.

    Takes scores (n,), best first, up to the end of the last block of the page.
    """
    edges = [0, *(np.flatnonzero(scores[1:] != scores[:-1]) + 1).tolist(), len(scores)]
    for first, last in pairwise(edges):
        if last - first < 2 or last <= shown.start or first >= shown.stop:
            continue
        skipped = max(0, shown.start - first) // TIE_ROWS * TIE_ROWS
        for start in range(first + skipped, min(last, shown.stop), TIE_ROWS):
            if min(start + TIE_ROWS, last) - start > 1:
                yield slice(start, min(start + TIE_ROWS, last))


def page_ties(scores: FloatArray, counts: Sequence[int], shown: slice) -> list[Block]:
    """Return the tied blocks with a row on a page, of the first `counts` of (Q, n) scores."""
    return [
        (query, columns)
        for query, count in enumerate(counts)
        for columns in tied_blocks(scores[query, :count], shown)
    ]


def batched_blocks(blocks: Sequence[Block], most: int) -> Iterator[Sequence[Block]]:
    """Cut blocks into runs with at most `most` columns in total, or of one block."""
    ends = np.cumsum([columns.stop - columns.start for _, columns in blocks])
    start = 0
    while start < len(blocks):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield blocks[start:stop]
        start = stop


def float_scores(
    query: FloatArray, rows: NDArray[np.floating[Any]], codebooks: Codebooks, *, norm: QueryNorm
) -> FloatArray:
    """Return (n,) float32: the inner products of float embeddings (n, D) with a query (D,).

    `norm` says whether the query's sub-vectors are normalised; those of the rows always are.
    """
    gallery = codebooks.vectors(rows.astype(np.float32))
    vector = codebooks.vectors(query[None], norm=norm)[0]
    # Row by row: a matrix product may round equal rows differently, and ties would break.
    scores: FloatArray = (gallery * vector).sum(axis=1, dtype=np.float64).astype(np.float32)
    return scores
