"""The codes that a cell stored in, something to search with out; no images, no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm
from phpq.reproduce.grid import Plan
from phpq.reproduce.store import Store


@dataclass(frozen=True, slots=True, eq=False)
class KeptCodes:
    """What `work` stored of a method with the first seed.

    Attributes:
        codebooks: M codebooks, rounded to float16 once.
        codes: (N, M) uint8, of the gallery; learned from labels where the method does so.
        gallery_rows: (N,) places in the training split.
        gallery_labels: (N,).
        queries: (Q, D) float32, at most 1,000 of the test images.
        query_rows: (Q,) their places in the test split.
        query_labels: (Q,).
        query_norm: How they are scored.
    """

    codebooks: Codebooks
    codes: CodeArray
    gallery_rows: IntArray
    gallery_labels: IntArray
    queries: FloatArray
    query_rows: IntArray
    query_labels: IntArray
    query_norm: QueryNorm

    @property
    def binary(self) -> bool:
        """Whether the codes are signs, to be compared by Hamming distance."""
        words = self.codebooks.codewords
        return not self.codebooks.unit and bool((np.abs(words) == 1).all())


def read_kept(plan: Plan, store: Store, key: str) -> KeptCodes | None:
    """Read the codes of a cell; None if there are none.

    Args:
        plan: That the cell belongs to.
        store: Of the grid.
        key: Of the cell.
    """
    cell = next(cell for cell in plan.cells if cell.key == key)
    if not store.arrays_path(cell).is_file():
        return None
    arrays = store.read_arrays(cell)
    norm: QueryNorm = "unit" if str(arrays["query_norm"]) == "unit" else "raw"
    return KeptCodes(
        codebooks=Codebooks(arrays["codebooks"].astype(np.float32), unit=bool(arrays["unit"])),
        codes=arrays["gallery_codes"],
        gallery_rows=arrays["gallery_rows"].astype(np.int64),
        gallery_labels=arrays["gallery_labels"].astype(np.int64),
        queries=arrays["queries"].astype(np.float32),
        query_rows=arrays["query_rows"].astype(np.int64),
        query_labels=arrays["query_labels"].astype(np.int64),
        query_norm=norm,
    )
