"""Results of a search: the same for the library, the command line and the server.

Plain data without numpy, so that a client of a server needs none.
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
    score: float  # sum of M inner products of unit sub-vectors, at most M; higher is better
    share: float  # of the best score that any code could reach for the query, 0 to 1
    label: str | None  # its class, if it has one
    uri: str | None  # where its file was when it was indexed; None from a server
    metadata: Mapping[str, Any]  # the values of the free columns
    thumbnail: str | None = None  # address of a small picture; None without a server
    has_original: bool | None = None  # whether the server can send its file; None without one
    probability: float | None = None  # that the query shows the same kind; None if not known

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without what only a server knows."""
        names = ("rank", "id", "score", "share", "label", "uri", "probability")
        return {n: getattr(self, n) for n in names} | {"metadata": plain_values(self.metadata)}


SHOWN_KINDS = 5  # of a verdict: the likeliest, and the runners-up
Kinds = tuple[tuple[str, float], ...]  # labels and their posteriors, the likeliest first
WRONG_AT_MOST = 0.05  # default of the share of names that may be wrong


@dataclass(frozen=True, slots=True)
class Sure:
    """The most specific name that is sure enough at the error rate that the caller accepts."""

    label: str | None  # a kind, or one of its parents; None: unknown
    level: int | None  # 0 for a kind, 1 for its parent, 2 for the parent of that; None: unknown
    probability: float  # that the name is right; of the likeliest kind if it is unknown
    wrong_at_most: float  # share of the names given that may be wrong, 0 to 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a query shows: the likeliest kind and its posterior, if the gallery can score kinds.

    Otherwise the most common label of some hits, and its share of them.
    """

    label: str
    share: float
    runners_up: Kinds = ()  # at most 4 others, the likeliest first; empty if by hits
    by: Literal["kinds", "hits"] = "hits"  # where the share comes from
    known: float | None = None  # probability that a kind passing the filter is shown; or None
    sure: Sure | None = None  # None if probabilities are not known

    @property
    def probability(self) -> float | None:
        """Probability that the query shows the kind `label`; None if not known."""
        return None if self.known is None else self.known * self.share

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        runners_up = [list(kind) for kind in self.runners_up]
        return asdict(self) | {"runners_up": runners_up, "probability": self.probability}


@dataclass(frozen=True, slots=True)
class Found(Sequence[Hit]):
    """The result of one query: a sequence of hits, best first.

    Equal scores are in the order of kept embeddings, or else of insertion.
    """

    hits: tuple[Hit, ...]  # one page of them
    total: int  # images that pass the filter, on all pages
    best: float  # the highest score that any code could reach for this query
    kinds: Kinds | None = None  # the likeliest that pass the filter; None if it has no kinds
    known: float | None = None  # probability that a kind passing the filter is shown; or None
    sure: Sure | None = None  # None if probabilities are not known

    @property
    def verdict(self) -> Verdict | None:
        """The likeliest kind; without kinds the most common label of these hits.

        Of equally common labels the one of the best hit; None without labels.
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
    """Return metadata as JSON values: dates as text, None for NaN."""
    return {name: _plain(value) for name, value in metadata.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
