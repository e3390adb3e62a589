"""What a search gives back, from the library, the command line and the server alike.

Plain data: no numpy, so that a client of a server needs none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, overload


@dataclass(frozen=True, slots=True)
class Hit:
    """One image that was found."""

    rank: int  # from 1, over all pages
    id: str  # its name in the gallery
    score: float  # sum of M inner products of unit sub-vectors; M at most, higher is better
    share: float  # of the best score that any code could reach for the query, 0 to 1
    label: str | None  # its class, if it has one
    uri: str | None  # where its file was when it was indexed; a server does not tell
    metadata: Mapping[str, Any]  # the values of the free columns
    thumbnail: str | None = None  # the address of a small picture; None without a server
    has_original: bool | None = None  # whether the server can send its file; None without one
    probability: float | None = None  # that it shows what the query shows; None where not known

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without what only a server knows."""
        names = ("rank", "id", "score", "share", "label", "uri", "probability")
        return {n: getattr(self, n) for n in names} | {"metadata": plain_values(self.metadata)}


SHOWN_KINDS = 5  # of a verdict: the likeliest, and the runners-up
Kinds = tuple[tuple[str, float], ...]  # labels and how likely each is, the likeliest first
WRONG_AT_MOST = 0.05  # of the names that are given; what a caller accepts who does not say


@dataclass(frozen=True, slots=True)
class Sure:
    """The most specific name that is sure enough for the false names that the caller accepts."""

    label: str | None  # a kind, or what it belongs to; None: unknown
    level: int | None  # 0 for a kind, 1 for what it belongs to, 2 for what that belongs to; or None
    probability: float  # that the name is right; of the likeliest kind where it is unknown
    wrong_at_most: float  # share of the names given that the caller accepts to be wrong, 0 to 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a query shows: the likeliest kind where the gallery knows kinds, and how likely it is.

    Otherwise the most common label of some hits, and its share of them.
    """

    label: str
    share: float
    runners_up: Kinds = ()  # at most 4 others, the likeliest first; empty where it is by hits
    by: Literal["kinds", "hits"] = "hits"  # what the share is of
    known: float | None = None  # how likely it is one of the kinds that pass the filter, if known
    sure: Sure | None = None  # what can be said; None where probabilities are not known

    @property
    def probability(self) -> float | None:
        """How likely the query shows the kind `label`; None where it is not known."""
        return None if self.known is None else self.known * self.share

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        told = {"runners_up": [list(kind) for kind in self.runners_up]}
        return asdict(self) | told | {"probability": self.probability}


@dataclass(frozen=True, slots=True)
class Found(Sequence[Hit]):
    """What was found for one query: a sequence of hits, best first.

    Of equal scores the better one by kept embeddings comes first, or else the one added first.
    """

    hits: tuple[Hit, ...]  # one page of them
    total: int  # images that pass the filter, on all pages
    best: float  # the highest score that any code could reach for this query
    kinds: Kinds | None = None  # of a gallery that knows kinds; the likeliest among all images
    known: float | None = None  # how likely it is one of the kinds that pass the filter, if known
    sure: Sure | None = None  # what can be said; None where probabilities are not known

    @property
    def verdict(self) -> Verdict | None:
        """The likeliest kind; without kinds the most common label of these hits.

        Of equally common ones the better placed; None without labels.
        """
        if self.kinds is not None:
            if not self.kinds:
                return None
            return Verdict(*self.kinds[0], self.kinds[1:], "kinds", self.known, self.sure)
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
        return {
            "total": self.total,
            "best": self.best,
            "verdict": self.verdict and self.verdict.to_dict(),
            "hits": [hit.to_dict() for hit in self.hits],
        }


def plain_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that JSON can hold: dates as text, no NaN."""
    return {name: _plain(value) for name, value in metadata.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
