"""What a search gives back: hits with names, their re-ranking, and a gallery for faiss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm, normalise_sub_vectors
from phpq.gallery.records import Record


@dataclass(frozen=True, slots=True)
class Hit:
    """One image of the gallery.

    Attributes:
        rank: From 1.
        id: Its name in the gallery.
        score: Sum of M inner products of unit sub-vectors; M at most, higher is better.
        label: Its class, if it has one.
        uri: Where its file was when it was indexed.
        metadata: The values of the free columns.
    """

    rank: int
    id: str
    score: float
    label: str | None
    uri: str | None
    metadata: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; dates as text."""
        plain = {name: _plain(value) for name, value in self.metadata.items()}
        return asdict(self) | {"metadata": plain}


@dataclass(frozen=True, slots=True, eq=False)
class FaissGallery:
    """A gallery for faiss.

    Attributes:
        index: A `faiss.IndexPQ` with the inner product. It does not normalise queries: pass
            `phpq.codes.normalise_sub_vectors(queries, M)`.
        ids: The id of each row of `index`.
    """

    index: Any
    ids: tuple[str, ...]


def to_hit(record: Record, score: float, rank: int) -> Hit:
    """Name a found row."""
    return Hit(
        rank=rank,
        id=record.id,
        score=float(score),
        label=record.label,
        uri=record.uri,
        metadata=dict(record.metadata),
    )


def rerank_rows(
    query: FloatArray, records: Sequence[Record], codebooks: Codebooks, *, norm: QueryNorm
) -> tuple[IntArray, FloatArray]:
    """Order records by the inner product of float embeddings; ties keep their order.

    Args:
        query: (D,) float32.
        records: n records with embeddings.
        codebooks: Say how an embedding is cut into sub-vectors.
        norm: Whether the query's sub-vectors are normalised; those of the gallery always are.

    Returns:
        (n,) int64 positions, best first, and (n,) float32 their scores.
    """
    books = codebooks.num_codebooks
    kept = [record.embedding for record in records if record.embedding is not None]
    if not kept:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    gallery = normalise_sub_vectors(np.stack(kept).astype(np.float32), books)
    asked = normalise_sub_vectors(query[None], books)[0] if norm == "unit" else query
    # Row by row: a matrix product may round equal rows differently, and ties would break.
    scores = (gallery * asked).sum(axis=1, dtype=np.float64).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    return order, scores[order]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
