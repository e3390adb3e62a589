"""Items in, records with codes out: files are hashed and decoded in threads while the model works.

A file whose content is in the gallery already is read, but neither decoded nor encoded again. A
batch is a stretch of the source, whatever is stored: a run that goes on where another stopped gives
the model the same batches, and so the same bits (rounding hangs on how many it sees at once).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray
from phpq.config import DataConfig
from phpq.data import SkippedImage, decode_square
from phpq.data.origins import RemoteFile, TableCell, content_hash, origin_at
from phpq.errors import BadImageError
from phpq.gallery.records import Record
from phpq.gallery.sources import Item

if TYPE_CHECKING:
    from phpq.model import Model

Find = Callable[[Sequence[str]], Mapping[str, Record]]  # the stored ones of some ids
Known = tuple[Item, Record | None]  # an image, and what the gallery holds under its id
_WINDOW = 4096  # ids looked up at once


class Encoder(Protocol):
    """What encoding needs of a model."""

    @property
    def codebooks(self) -> Codebooks:
        """M codebooks."""
        ...

    @property
    def data(self) -> DataConfig:
        """How an image becomes pixels."""
        ...

    @property
    def batch_size(self) -> int:
        """Images that it is given at once."""
        ...

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> FloatArray:
        """Embed (n, 3, S, S) uint8 squares: (n, D) float32."""
        ...


class ModelEncoder:
    """A model as an `Encoder`.

    Args:
        model: On any device.
        batch_size: Images that it sees at once.
    """

    def __init__(self, model: Model, batch_size: int = 64) -> None:
        self._model = model
        self.batch_size = batch_size

    @property
    def codebooks(self) -> Codebooks:
        """M codebooks."""
        return self._model.codebooks

    @property
    def data(self) -> DataConfig:
        """How an image becomes pixels."""
        return self._model.card.config.data

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> FloatArray:
        """Embed (n, 3, S, S) uint8 squares: (n, D) float32."""
        return self._model.embed_pixels(pixels, batch_size=self.batch_size)

    def encode_again(self, records: Sequence[Record]) -> list[Record | None]:
        """Encode images from their files; None for one whose file is gone or has changed."""
        return [self._encode_again(record) for record in records]

    def _encode_again(self, record: Record) -> Record | None:
        if record.uri is None:
            return None
        try:
            sha256, content = content_hash(origin_at(record.uri))
            if sha256 != record.sha256:
                return None
            embedding = self.embed_pixels(decode_square(content, self.data)[None])
        except BadImageError:
            return None
        kept = None if record.embedding is None else embedding[0].astype(np.float16)
        return replace(record, code=self.codebooks.encode(embedding)[0], embedding=kept)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One image that was looked at.

    Attributes:
        item: What was asked for.
        record: What is to be written; None if nothing is.
        stored: What the gallery holds under this id, if anything.
        skipped: Why it cannot be read; None if it can.
    """

    item: Item
    record: Record | None = None
    stored: Record | None = None
    skipped: SkippedImage | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A file that was read: its square, or no square where its content is stored already."""

    item: Item
    stored: Record | None
    sha256: bytes = b""
    square: NDArray[np.uint8] | None = None
    reason: str | None = None


def encode_items(
    items: Iterable[Item],
    find: Find,
    encoder: Encoder,
    *,
    keep_embeddings: bool = False,
    workers: int = 0,
) -> Generator[list[Encoded], None, None]:
    """Encode images by batches, in their order, in flat memory.

    Args:
        items: Any number of images.
        find: Returns the records of those ids that the gallery holds.
        encoder: The model.
        keep_embeddings: Put float16 embeddings into the records.
        workers: Threads that read and decode; 0 is one a core.

    Yields:
        What became of each batch: `encoder.batch_size` images that follow each other in `items`.
    """
    known = look_up(items, find)
    return encode_known(known, encoder, keep_embeddings=keep_embeddings, workers=workers)


def look_up(items: Iterable[Item], find: Find) -> Iterator[Known]:
    """Yield each image with what the gallery holds under its id."""
    stream = iter(items)
    while window := list(islice(stream, _WINDOW)):
        stored = find([item.id for item in window])
        yield from ((item, stored.get(item.id)) for item in window)


def encode_known(
    images: Iterable[Known], encoder: Encoder, *, keep_embeddings: bool = False, workers: int = 0
) -> Generator[list[Encoded], None, None]:
    """Do as `encode_items` with images that were looked up."""
    ahead = _read_ahead(images, encoder.data, 2 * encoder.batch_size, workers=workers)
    try:
        while batch := list(islice(ahead, encoder.batch_size)):
            yield _finish(batch, encoder, keep_embeddings)
    finally:
        ahead.close()


def _read_ahead(
    images: Iterable[Known], config: DataConfig, ahead: int, *, workers: int
) -> Generator[_Read, None, None]:
    """Read files in threads, some ahead of the model, and yield them in order."""
    waiting: deque[Future[_Read]] = deque()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        try:
            for item, stored in images:
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_read, item, stored, config))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _read(item: Item, stored: Record | None, config: DataConfig) -> _Read:
    try:
        sha256, content = content_hash(item.image)
        if stored is not None and stored.sha256 == sha256:
            return _Read(item, stored, sha256)
        square = decode_square(content, config, name=_name(item))
    except BadImageError as error:
        return _Read(item, stored, reason=str(error))
    return _Read(item, stored, sha256, square)


def _finish(batch: list[_Read], encoder: Encoder, keep_embeddings: bool) -> list[Encoded]:
    squares = [read.square for read in batch if read.square is not None]
    embeddings = encoder.embed_pixels(np.stack(squares)) if squares else None
    codes = encoder.codebooks.encode(embeddings) if embeddings is not None else None
    done: list[Encoded] = []
    place = 0
    for read in batch:
        item, stored = read.item, read.stored
        if read.reason is not None:
            done.append(Encoded(item, None, stored, SkippedImage(item.id, read.reason)))
        elif read.square is None:
            done.append(Encoded(item, _retold(item, stored), stored))
        elif codes is not None and embeddings is not None:
            kept = embeddings[place].astype(np.float16) if keep_embeddings else None
            record = Record(
                id=item.id,
                uri=item.uri,
                label=item.label,
                sha256=read.sha256,
                code=codes[place],
                metadata=item.metadata,
                embedding=kept,
            )
            done.append(Encoded(item, record, stored))
            place += 1
    return done


def _retold(item: Item, stored: Record | None) -> Record | None:
    """Return the stored record with what is said of the image now; None if that is the same."""
    if stored is None:
        return None
    before = {name: value for name, value in stored.metadata.items() if value is not None}
    merged = {**before, **item.metadata}
    metadata = {name: value for name, value in merged.items() if value is not None}
    uri = item.uri if item.uri is not None else stored.uri
    if (uri, item.label, metadata) == (stored.uri, stored.label, before):
        return None
    return replace(stored, uri=uri, label=item.label, metadata=metadata)


def _name(item: Item) -> str:
    in_a_file = isinstance(item.image, RemoteFile | TableCell | Path)
    return str(item.image) if in_a_file else item.id
