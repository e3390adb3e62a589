"""Exact search: every distinct code is scored once, then expanded to the rows that hold it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    QueryNorm,
    check_codes,
    group_codes,
    score_codes,
)
from phpq.errors import ShapeError
from phpq.index.protocol import SearchResult

_BLOCK_SCORES = 1 << 20  # scores of one block of queries


class FlatIndex:
    """A gallery of codes in memory, searched exactly by table lookups.

    Args:
        codebooks: The codebooks the codes were made with.
        codes: (N, M) uint8; a row's id is its position.
    """

    def __init__(self, codebooks: Codebooks, codes: CodeArray) -> None:
        check_codes("codes", codes, codebooks.num_codebooks, codebooks.codebook_size)
        self._codebooks = codebooks
        groups = group_codes(codes)
        # Rows sorted by group, ascending inside a group: a group is a slice of `rows`.
        rows = groups.group_of_row.argsort(kind="stable")
        starts = groups.sizes.cumsum() - groups.sizes
        self._group_codes = groups.codes
        self._starts = starts
        self._sizes = groups.sizes
        self._rows: IntArray = rows

    @property
    def codebooks(self) -> Codebooks:
        """The codebooks of the rows."""
        return self._codebooks

    @property
    def distinct_codes(self) -> int:
        """Different codes among the rows."""
        return len(self._sizes)

    def __len__(self) -> int:
        return len(self._rows)

    def search(
        self, queries: FloatArray, top_k: int = 10, *, query_norm: QueryNorm = "unit"
    ) -> SearchResult:
        """Return the `top_k` rows of highest score, ties in order of insertion.

        Args:
            queries: (Q, D) float.
            top_k: Rows a query, at least 1.
            query_norm: "unit" or "raw", see `Codebooks.lookup_tables`.
        """
        if not isinstance(top_k, int | np.integer) or top_k < 1:
            raise ShapeError(f"top_k={top_k!r} is not allowed; expected a whole number >= 1.")
        step = max(1, _BLOCK_SCORES // max(1, self.distinct_codes))
        blocks = []
        for start in range(0, max(len(queries), 1), step):
            tables = self._codebooks.lookup_tables(queries[start : start + step], norm=query_norm)
            blocks.append(self._search_block(tables, int(top_k)))
        return SearchResult(
            ids=np.concatenate([block.ids for block in blocks]),
            scores=np.concatenate([block.scores for block in blocks]),
        )

    def _search_block(self, tables: FloatArray, top_k: int) -> SearchResult:
        result = SearchResult(
            ids=np.full((len(tables), top_k), -1, dtype=np.int64),
            scores=np.full((len(tables), top_k), -np.inf, dtype=np.float32),
        )
        if not len(tables) or not len(self):
            return result
        scores = score_codes(tables, self._group_codes)
        query, group, values = self._wanted_groups(scores, top_k)
        # At most top_k rows of a group can be wanted, and they are its first.
        wanted = np.minimum(self._sizes[group], top_k)
        first = self._starts[group] - (wanted.cumsum() - wanted)
        rows = self._rows[np.arange(int(wanted.sum())) + np.repeat(first, wanted)]
        query, values = np.repeat(query, wanted), np.repeat(values, wanted)
        order = np.lexsort((rows, -values, query))
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        inside = rank < top_k
        place = (query[inside], rank[inside])  # sorting leaves `query` itself as it is
        result.ids[place] = rows[order][inside]
        result.scores[place] = values[order][inside]
        return result

    def _wanted_groups(
        self, scores: FloatArray, top_k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
        """Return (query, group, score) triples that hold every row of the answer, best first."""
        query, group = _best_groups(scores, top_k)
        values = scores[query, group]
        order = np.lexsort((-values, query))
        group, values = group[order], values[order]
        # A group is not wanted where groups of better score already fill the answer.
        sizes = self._sizes[group]
        before = sizes.cumsum() - sizes
        new_query = np.diff(query, prepend=-1) != 0
        new_score = new_query | (np.diff(values, prepend=np.inf) != 0)
        place = np.arange(len(query))
        first_of_query = np.maximum.accumulate(np.where(new_query, place, 0))
        first_of_score = np.maximum.accumulate(np.where(new_score, place, 0))
        wanted = before[first_of_score] - before[first_of_query] < top_k
        return query[wanted], group[wanted], values[wanted]


def _best_groups(scores: FloatArray, top_k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return (query, group) pairs that hold every row of the answer, queries ascending.

    The groups that score at least as much as the query's k-th best group are enough: each group
    that scores more than another offers a row before all rows of the other.
    """
    if top_k >= scores.shape[1]:
        query, group = np.indices(scores.shape).reshape(2, -1)
        return query, group
    kth = scores.shape[1] - top_k
    query, group = np.nonzero(scores >= np.partition(scores, kth, axis=1)[:, kth : kth + 1])
    return query, group
