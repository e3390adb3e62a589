"""What a search gives back, from the library, the command line and the server alike.

Plain data: no numpy, so that a client of a server needs none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class Hit:
    """One image that was found.

    Attributes:
        rank: From 1, over all pages.
        id: Its name in the gallery.
        score: Sum of M inner products of unit sub-vectors; M at most, higher is better.
        share: Of the best score that any code could reach for the query, 0 to 1.
        label: Its class, if it has one.
        uri: Where its file was when it was indexed; a server does not tell.
        metadata: The values of the free columns.
        thumbnail: The address of a small picture on the server; None without a server.
        has_original: Whether the server can send its file; None without a server.
    """

    rank: int
    id: str
    score: float
    share: float
    label: str | None
    uri: str | None
    metadata: Mapping[str, Any]
    thumbnail: str | None = None
    has_original: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without what only a server knows."""
        return {
            "rank": self.rank,
            "id": self.id,
            "score": self.score,
            "share": self.share,
            "label": self.label,
            "uri": self.uri,
            "metadata": plain_values(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The most common label of some hits, and its share of them."""

    label: str
    share: float


@dataclass(frozen=True, slots=True)
class Found(Sequence[Hit]):
    """What was found for one query: a sequence of hits, best first, equal ones as inserted.

    Attributes:
        hits: One page of them.
        total: Images that pass the filter, on all pages.
        best: The highest score that any code could reach for this query.
    """

    hits: tuple[Hit, ...]
    total: int
    best: float

    @property
    def verdict(self) -> Verdict | None:
        """The most common label of these hits, the better placed of equals; None without labels."""
        labels = [hit.label for hit in self.hits if hit.label is not None]
        if not labels:
            return None
        winner = max(dict.fromkeys(labels), key=labels.count)
        return Verdict(winner, labels.count(winner) / len(self.hits))

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        verdict = self.verdict
        return {
            "total": self.total,
            "best": self.best,
            "verdict": verdict and {"label": verdict.label, "share": verdict.share},
            "hits": [hit.to_dict() for hit in self.hits],
        }


def plain_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that JSON can hold: dates as text, no NaN."""
    return {name: _plain(value) for name, value in metadata.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
