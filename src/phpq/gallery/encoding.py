"""Items in, records with codes out: files are hashed and decoded in threads while the model works.

A file whose content is in the gallery already is read, but neither decoded nor encoded again. A
batch is a stretch of the source, whatever is stored: a run that goes on where another stopped gives
the model the same batches, and so the same bits (rounding depends on how many it sees at once).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phpq.config import DataConfig
from phpq.data import decode_square
from phpq.data.ahead import read_ahead
from phpq.data.origins import RemoteFile, TableCell, content_hash, origin_at
from phpq.errors import BadImageError
from phpq.gallery.records import Record
from phpq.gallery.sources import Item

if TYPE_CHECKING:
    from phpq.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One image that was looked at."""

    item: Item
    record: Record | None = None  # what is to be written; None if nothing is
    reason: str | None = None  # why it cannot be read; None if it can


class Engine(Protocol):
    """Encodes images and writes their rows elsewhere, with the order and content of this process.

    The one there is: `phpq.cluster.encoding`.
    """

    @property
    def workers(self) -> int:
        """Machines or devices at work: commits are that many times as large."""
        ...

    def encode(
        self,
        items: Iterable[Item],
        model: Model,
        *,
        batch_size: int = 64,
        keep_embeddings: bool = False,
    ) -> Generator[list[Encoded], None, None]:
        """Do as `encode_items`."""
        ...

    def write(self, table: Any, dataset: Any) -> list[Any]:
        """Write an Arrow table as fragments of a Lance dataset, for a commit to come."""
        ...


def encode_items(
    items: Iterable[Item],
    model: Model,
    *,
    batch_size: int = 64,
    keep_embeddings: bool = False,
    workers: int = 0,
) -> Generator[list[Encoded], None, None]:
    """Encode images by batches, in their order, in flat memory.

    Args:
        items: Any number of images, with what the gallery holds under their ids.
        model: On any device.
        batch_size: Images that it sees at once.
        keep_embeddings: Put float16 embeddings into the records.
        workers: Threads that read and decode; 0 is one per core.

    Yields:
        What became of each batch: `batch_size` images that follow each other in `items`.
    """
    config = model.card.config.data
    with closing(
        read_ahead(items, lambda item: _read(item, config), ahead=2 * batch_size, workers=workers)
    ) as images:
        while batch := list(islice(images, batch_size)):
            yield _finish(batch, model, keep_embeddings)


def encode_again(model: Model, records: Sequence[Record]) -> list[Record | None]:
    """Encode stored images from their files; None for one whose file is gone or has changed."""
    return [_encode_again(model, record) for record in records]


def _encode_again(model: Model, record: Record) -> Record | None:
    if record.uri is None:
        return None
    try:
        sha256, content = content_hash(origin_at(record.uri))
        if sha256 != record.sha256:
            return None
        embedding = model.embed_pixels(decode_square(content, model.card.config.data)[None])
    except BadImageError:
        return None
    kept = None if record.embedding is None else embedding[0].astype(np.float16)
    return replace(record, code=model.codebooks.encode(embedding)[0], embedding=kept)


# An image, its hash, and its square, or why it cannot be read, or None if it is stored already.
_Read = tuple[Item, bytes, NDArray[np.uint8] | str | None]


def _read(item: Item, config: DataConfig) -> _Read:
    try:
        sha256, content = content_hash(item.image)
        if item.stored is not None and item.stored.sha256 == sha256:
            return item, sha256, None
        in_a_file = isinstance(item.image, RemoteFile | TableCell | Path)
        name = str(item.image) if in_a_file else item.id
        return item, sha256, decode_square(content, config, name=name)
    except BadImageError as error:
        return item, b"", str(error)


def _finish(batch: list[_Read], model: Model, keep_embeddings: bool) -> list[Encoded]:
    squares = [square for _, _, square in batch if isinstance(square, np.ndarray)]
    if squares:
        embeddings = model.embed_pixels(np.stack(squares), batch_size=len(squares))
        encoded = zip(embeddings, model.codebooks.encode(embeddings), strict=True)
    done: list[Encoded] = []
    for item, sha256, square in batch:
        if isinstance(square, str):
            done.append(Encoded(item, reason=square))
        elif square is None:
            done.append(Encoded(item, _described_anew(item)))
        else:
            embedding, code = next(encoded)
            kept = embedding.astype(np.float16) if keep_embeddings else None
            record = Record(item.id, item.uri, item.label, sha256, code, item.metadata, kept)
            done.append(Encoded(item, record))
    return done


def _described_anew(item: Item) -> Record | None:
    """Return the stored record with the place, label and metadata of now; None if none differs."""
    stored = item.stored
    assert stored is not None
    before = {name: value for name, value in stored.metadata.items() if value is not None}
    merged = {**before, **item.metadata}
    metadata = {name: value for name, value in merged.items() if value is not None}
    uri = item.uri if item.uri is not None else stored.uri
    if (uri, item.label, metadata) == (stored.uri, stored.label, before):
        return None
    return replace(stored, uri=uri, label=item.label, metadata=metadata)
