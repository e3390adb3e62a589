"""The obvious twin of an index: a list of codes, a list of marks, every row scored every time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray, IntArray
from reference import scan_codes


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
        rows = np.flatnonzero(self.alive if allowed is None else self.alive & allowed)
        return scan_codes(tables, self.codes, top_k, rows)
