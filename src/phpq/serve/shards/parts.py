"""Where the shards are: the one interface that a snapshot asks, and shards in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from phpq.codes import Codebooks
from phpq.gallery.store import GalleryStore
from phpq.serve.shards.requests import Request, ShardFacts
from phpq.serve.shards.shard import Shard

T = TypeVar("T")


class ShardEvents(Protocol):
    """Is told what happens to shards; see `phpq.serve.metrics.Metrics`."""

    def shard_retried(self, shard: int) -> None:
        """Count a call that failed and is made again."""

    def shard_restarted(self, shard: int) -> None:
        """Count a replica that answers for the first time in the place of another."""

    def shard_failed(self, shard: int) -> None:
        """Count a request that was given up."""


class Parts(Protocol):
    """All shards, at one version of the gallery."""

    @property
    def facts(self) -> tuple[ShardFacts, ...]:
        """Of each shard, in the order of the shards."""

    def ask(self, requests: Mapping[int, Request[T]]) -> dict[int, T]:
        """Ask some shards, each its own request; returns the answers by shard.

        Raises:
            Refused: With 503, if a shard does not answer in time.
        """


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
    """Shards in this process.

    Args:
        shards: In their order.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards

    @property
    def facts(self) -> tuple[ShardFacts, ...]:
        """Of each shard, in the order of the shards."""
        return tuple(shard.facts for shard in self._shards)

    def ask(self, requests: Mapping[int, Request[T]]) -> dict[int, T]:
        """Ask some shards, each its own request; returns the answers by shard."""
        return {number: asked.run(self._shards[number]) for number, asked in requests.items()}


class LocalShards:
    """Opens shards in this process: one of them is the server of one machine.

    Args:
        count: How many.
    """

    remote = False

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def open(self, store: GalleryStore, codebooks: Codebooks) -> LocalParts:
        """Load the shards at the version of a store."""
        numbers = range(self._count)
        return LocalParts([Shard(store, codebooks, number, self._count) for number in numbers])

    def report_to(self, events: ShardEvents) -> None:
        """Nothing ever happens to them."""

    def missing(self) -> list[int]:
        """Return none: they are where the caller is."""
        return []
