"""Who does the work of a bulk add: this process, or a cluster (`phpq.cluster.encoding`)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Protocol

from phpq.gallery.encoding import Encoded, Encoder, Find, encode_items
from phpq.gallery.fragments import write_here
from phpq.gallery.sources import Item


class Engine(Protocol):
    """Encodes images and writes their rows; order and content are the same with every engine."""

    @property
    def workers(self) -> int:
        """Machines or devices at work: commits are that many times as large."""
        ...

    def encode(
        self, items: Iterable[Item], find: Find, encoder: Encoder, *, keep_embeddings: bool = False
    ) -> Generator[list[Encoded], None, None]:
        """Encode images by batches, in their order; see `encode_items`."""
        ...

    def write(self, table: Any, dataset: Any) -> list[Any]:
        """Write an Arrow table as fragments of a Lance dataset, for a commit to come."""
        ...


class LocalEngine:
    """This process and its threads."""

    workers = 1

    def encode(
        self, items: Iterable[Item], find: Find, encoder: Encoder, *, keep_embeddings: bool = False
    ) -> Generator[list[Encoded], None, None]:
        """Encode images by batches, in their order; see `encode_items`."""
        return encode_items(items, find, encoder, keep_embeddings=keep_embeddings)

    def write(self, table: Any, dataset: Any) -> list[Any]:
        """Write an Arrow table as fragments of a Lance dataset, for a commit to come."""
        return write_here(table, dataset)
