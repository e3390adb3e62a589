"""The obvious twin of an index: a list of codes, a list of marks, every row scored every time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray, IntArray, score_codes


class PlainGallery:
    def __init__(self, num_codebooks: int) -> None:
        self.codes = np.empty((0, num_codebooks), dtype=np.uint8)
        self.alive = np.empty(0, dtype=np.bool_)

    def add(self, codes: CodeArray) -> None:
        self.codes = np.concatenate([self.codes, codes])
        self.alive = np.concatenate([self.alive, np.ones(len(codes), dtype=np.bool_)])

    def remove(self, rows: IntArray) -> None:
        for row in rows:
            self.alive[row] = False

    def search(
        self, tables: FloatArray, top_k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Rows by (score, insertion), of those that live and are allowed."""
        ids = np.full((len(tables), top_k), -1, dtype=np.int64)
        best = np.full((len(tables), top_k), -np.inf, dtype=np.float32)
        rows = np.flatnonzero(self.alive if allowed is None else self.alive & allowed)
        for q, scores in enumerate(score_codes(tables, self.codes)):
            order = rows[np.lexsort((rows, -scores[rows]))][:top_k]
            ids[q, : len(order)], best[q, : len(order)] = order, scores[order]
        return ids, best
