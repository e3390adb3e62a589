"""What every index offers: queries (Q, D) in, the ids and scores of the best rows out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The best rows of each query, best first.

    Attributes:
        ids: (Q, k) int64, row numbers in order of insertion; -1 where the gallery has too few rows.
        scores: (Q, k) float32, descending, equal scores in order of insertion; -inf beside a -1.
    """

    ids: IntArray
    scores: FloatArray


class Index(Protocol):
    """Exact or approximate search over a gallery of codes."""

    @property
    def codebooks(self) -> Codebooks:
        """The codebooks of the rows."""

    def __len__(self) -> int:
        """Rows of the gallery."""

    def search(
        self, queries: FloatArray, top_k: int = 10, *, query_norm: QueryNorm = "unit"
    ) -> SearchResult:
        """Return the `top_k` rows of highest score.

        Args:
            queries: (Q, D) float.
            top_k: Rows a query, at least 1.
            query_norm: "unit" or "raw", see `Codebooks.lookup_tables`.
        """
