"""Where the shards of a gallery are: the interface that a view asks, and shards in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from phpq.codes import Codebooks, IntArray
from phpq.gallery.part import part_bounds
from phpq.gallery.shard import Ranked, Request, Shard
from phpq.gallery.store import GalleryStore

# Told what happens, "retries", "restarts" or "failures", and to which shard.
ShardEvents = Callable[[str, int], None]


class Parts(Protocol):
    """All shards, at one version of the gallery."""

    @property
    def edges(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the places from entry s up to entry s + 1."""

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask some shards, each its own request; returns the answers by shard.

        Raises:
            Refused: With 503, if a shard on another machine does not answer in time.
        """

    def memory_bytes(self) -> int:
        """Return the memory that the shards take in this process."""


class Shards(Protocol):
    """All shards, at any version."""

    @property
    def remote(self) -> bool:
        """Whether to ask is to wait for other processes."""

    def open(self, store: GalleryStore, codebooks: Codebooks) -> Parts:
        """Return the shards at the version of a store, loaded."""

    def report_to(self, events: ShardEvents) -> None:
        """Tell `events` from now on."""

    def missing(self) -> list[int]:
        """Return the shards that do not answer."""


class LocalParts:
    """Shards in this process, in their order."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards
        self.edges = part_bounds(shards[0].total, len(shards))

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask some shards, each its own request; returns the answers by shard."""
        return {number: asked.run(self._shards[number]) for number, asked in requests.items()}

    def memory_bytes(self) -> int:
        """Return the memory of all shards."""
        return sum(shard.memory_bytes() for shard in self._shards)


class LocalShards:
    """Opens shards in this process.

    Args:
        count: How many.
        prepare: Do before the first request what would slow it down, at a cost in memory; see
            `Shard.prepare`.
    """

    remote = False

    def __init__(self, count: int = 1, *, prepare: bool = False) -> None:
        self._count = count
        self._prepare = prepare

    def open(self, store: GalleryStore, codebooks: Codebooks) -> LocalParts:
        """Load the shards at the version of a store."""
        shards = [Shard(store, codebooks, number, self._count) for number in range(self._count)]
        for shard in shards:
            if self._prepare:
                shard.prepare()
        return LocalParts(shards)

    def report_to(self, events: ShardEvents) -> None:
        """Nothing ever happens to them."""

    def missing(self) -> list[int]:
        """Return none: they are where the caller is."""
        return []


def merge_ranked(parts: Sequence[Ranked], wanted: int) -> Ranked:
    """Put the best rows of shards together.

    Every row of the answer is among the best of its own shard, so that nothing is lost; and shards
    are ranges of the order of insertion, so that a stable sort leaves ties in that order.

    Args:
        parts: One per shard, in the order of the shards, each with its best `wanted` rows.
        wanted: How many per query.

    Returns:
        Bit for bit what one index over all rows returns.
    """
    if len(parts) == 1:
        return parts[0]
    places, offsets, scores = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("places", "offsets", "scores")
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :wanted]
    places, offsets, scores = (
        np.take_along_axis(values, order, axis=1) for values in (places, offsets, scores)
    )
    return Ranked(places, offsets, scores, total=sum(part.total for part in parts))
