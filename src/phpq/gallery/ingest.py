"""Bulk add: a source in, records with codes committed every few seconds, and a report out.

Threads hash and decode files while the model works; content that is in the gallery already is
neither decoded nor encoded again. The result does not depend on timing:

- Batches are consecutive images of the source, whether stored or not. A resumed run gives the model
  the same batches, and so the same bits (rounding depends on the batch).
- Images are compared with the gallery as it was at the start, whatever is committed meanwhile.
- If a source names an id twice, the last one wins.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phpq.additive import can_grow
from phpq.codes import Space
from phpq.config import DataConfig
from phpq.data import SkippedImage, decode_square
from phpq.data.decode import read_ahead
from phpq.data.places import RemoteFile, TableCell, content_hash, exists, origin_at
from phpq.errors import BadImageError, ConfigError, DataError, FormatError
from phpq.gallery.owned import code_records
from phpq.gallery.records import Record, column_name
from phpq.gallery.sources import Item, Source, count_items, read_items
from phpq.gallery.store import GalleryStore, write_here

if TYPE_CHECKING:
    from phpq.model import Model

Progress = Callable[[str, int, int], None]  # what is done, images done, images in all
COMMIT_IMAGES = 2000
COMMIT_SECONDS = 10.0
FIT_IMAGES = 20_000  # of the first commit if the gallery owns its codebooks: they are fitted to it
_MANY_FILES = 100  # each commit makes a file; more than this are merged at the end
_WINDOW = 4096  # ids looked up at once


@dataclass(frozen=True, slots=True)
class AddReport:
    """Counts of the images of a source."""

    added: int = 0  # new ids
    unchanged: int = 0  # ids that are stored with the same content, label and metadata
    replaced: int = 0  # ids whose content, place, label or metadata has changed
    skipped: tuple[SkippedImage, ...] = ()  # images that cannot be read
    refitted: bool = False  # whether the gallery's own codebooks were fitted again

    @property
    def seen(self) -> int:
        """All images of the source."""
        return self.added + self.unchanged + self.replaced + len(self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One image of the source, processed."""

    item: Item
    record: Record | None = None  # to be written; None if nothing has changed
    reason: str | None = None  # why it cannot be read; None if it can


class Engine(Protocol):
    """Encodes images and writes rows in other processes, with the same result as in this one.

    Implemented by `phpq.cluster.encoding`.
    """

    @property
    def workers(self) -> int:
        """Number of machines or devices; commits are that many times as large."""

    def encode(
        self,
        items: Iterable[Item],
        model: Model,
        *,
        batch_size: int,
        keep_embeddings: bool,
        space: Space = "learned",
    ) -> Generator[list[Encoded], None, None]:
        """Do as `encode_items`."""

    def write(self, table: Any, dataset: Any) -> list[Any]:
        """Write an Arrow table as fragments of a Lance dataset, to be committed later."""


def encode_items(
    items: Iterable[Item],
    model: Model,
    *,
    batch_size: int = 64,
    keep_embeddings: bool = False,
    space: Space = "learned",
    workers: int = 0,
) -> Generator[list[Encoded], None, None]:
    """Encode images in bounded memory; those that `Item.stored` shows to be unchanged are not.

    Yields batches of `batch_size` consecutive items. In the "general" space images are only
    embedded; `code_records` encodes them when they are written. `workers` are the threads that read
    and decode; 0 is one per core.
    """
    config = model.card.config.data
    with closing(
        read_ahead(items, lambda item: _read(item, config), ahead=2 * batch_size, workers=workers)
    ) as images:
        while batch := list(islice(images, batch_size)):
            yield _finish(batch, model, keep_embeddings, space)


def encode_again(model: Model, record: Record, store: GalleryStore) -> Record | None:
    """Encode a stored image from its file; None if that is gone or has changed."""
    if record.uri is None:
        return None
    space = store.manifest.space
    try:
        sha256, content = content_hash(origin_at(record.uri))
        if sha256 != record.sha256:
            return None
        square = decode_square(content, model.card.config.data)
        embedding = model.embed_pixels(square[None], space=space)
    except BadImageError:
        return None
    kept = None if record.embedding is None else embedding[0].astype(np.float16)
    if store.manifest.owns_codebooks:
        vector = embedding.astype(np.float16).astype(np.float32)
        code = store.own_codebooks().encode(vector, [record.label])[0]
    else:
        code = model.codebooks.encode(embedding)[0]
    return replace(record, code=code, embedding=kept)


# An item, its hash, and its pixels, or why it cannot be read, or None if it is stored already.
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


def _finish(batch: list[_Read], model: Model, keep_embeddings: bool, space: Space) -> list[Encoded]:
    squares = [square for _, _, square in batch if isinstance(square, np.ndarray)]
    if squares:
        pixels = np.stack(squares)
        embeddings = model.embed_pixels(pixels, batch_size=len(squares), space=space)
        if space == "learned":
            codes = model.codebooks.encode(embeddings)
        else:
            codes, keep_embeddings = np.empty((len(embeddings), 0), np.uint8), True
        encoded = zip(embeddings, codes, strict=True)
    done: list[Encoded] = []
    for item, sha256, square in batch:
        if isinstance(square, str):
            done.append(Encoded(item, reason=square))
        elif square is None:
            done.append(Encoded(item, _updated(item)))
        else:
            embedding, code = next(encoded)
            kept = embedding.astype(np.float16) if keep_embeddings else None
            record = Record(item.id, item.uri, item.label, sha256, code, item.metadata, kept)
            done.append(Encoded(item, record))
    return done


def _updated(item: Item) -> Record | None:
    """Return the stored record with new place, label and metadata; None if nothing differs."""
    stored = item.stored
    assert stored is not None
    before = {name: value for name, value in stored.metadata.items() if value is not None}
    merged = {**before, **item.metadata}
    metadata = {name: value for name, value in merged.items() if value is not None}
    uri = item.uri if item.uri is not None else stored.uri
    if (uri, item.label, metadata) == (stored.uri, stored.label, before):
        return None
    return replace(stored, uri=uri, label=item.label, metadata=metadata)


@dataclass
class Ingest:
    """One bulk add into a store."""

    store: GalleryStore
    model: Model
    batch_size: int = 64  # of the model
    refuse_bad: bool = False  # stop at an image that cannot be read
    refuse_clash: bool = True  # stop at an id that names another file that still exists
    engine: Engine | None = None  # encodes and writes; None: this process

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(
                f"batch_size={self.batch_size} is not allowed: it must be at least 1."
            )
        self._before = self.store  # the version that images are compared with
        self._made_by = self.store.manifest.model_fingerprint  # of `model`
        self._waiting: dict[str, Record] = {}
        self._rewritten: set[str] = set()  # ids of `_before` that were written since
        self._relabelled: dict[str, str | None] = {}  # waiting ids with another label: the old one
        self._since = time.monotonic()
        self._skipped: list[SkippedImage] = []
        self._counts: Counter[str] = Counter()
        self._refitted = False

    def run(
        self,
        source: Source,
        progress: Progress | None = None,
        *,
        metadata: Mapping[str, Any],
        prefix: str = "",
    ) -> AddReport:
        """Encode and write a source; finished images are committed even if this is interrupted.

        `progress` is called with ("indexing", images done, images in all). `metadata` holds values
        for all images; `prefix` is put before every id.
        """
        total = (count_items(source) or 0) if progress else 0
        self.store.refresh()
        self._before = GalleryStore.open(self.store.folder)
        if self._before.manifest.owns_codebooks:
            self._before.own_codebooks()  # now: another process may compact the gallery later
        batches = (self.engine.encode if self.engine else encode_items)(
            self._items(source, metadata, prefix),
            self.model,
            batch_size=self.batch_size,
            keep_embeddings=self.store.manifest.keep_embeddings,
            space=self.store.manifest.space,
        )
        seen = 0
        try:
            with closing(batches):  # its threads stop
                for batch in batches:
                    for encoded in batch:
                        seen += 1
                        self._take(encoded)
                    self._commit_if_due()
                    if progress:
                        progress("indexing", seen, max(total, seen))
        finally:
            self._commit()
        self.store.merge_files(above=_MANY_FILES)
        counts = self._counts
        return AddReport(
            added=counts["added"],
            unchanged=counts["unchanged"],
            replaced=counts["replaced"],
            skipped=tuple(self._skipped),
            refitted=self._refitted,
        )

    def _items(self, source: Source, metadata: Mapping[str, Any], prefix: str) -> Iterator[Item]:
        """Yield the images of a source with the stored records of their ids."""
        shared = {column_name(name): value for name, value in metadata.items()}
        items = read_items(source)
        while window := list(islice(items, _WINDOW)):
            names = [prefix + item.id for item in window]
            stored = self._find(names)
            for name, item in zip(names, window, strict=True):
                about = {**item.metadata, **shared} if shared else item.metadata
                yield Item(name, item.image, item.label, about, stored.get(name))

    def _find(self, ids: Sequence[str]) -> Mapping[str, Record]:
        try:
            return self._before.find(ids)
        except FormatError:
            # Another process may have compacted the gallery and removed the version we read.
            newer = GalleryStore.open(self.store.folder)
            if newer.manifest.fit != self._before.manifest.fit:  # codes of another fit
                raise DataError(
                    f"The gallery {str(self.store.folder)!r} was fitted anew and compacted by "
                    "another process while images were added. What is done is in the gallery; run "
                    "this again to go on."
                ) from None
            self._before = newer
            return newer.find(ids)

    def _take(self, encoded: Encoded) -> None:
        item, record = encoded.item, encoded.record
        if encoded.reason is not None:
            if self.refuse_bad:
                raise BadImageError(encoded.reason)
            self._skipped.append(SkippedImage(item.id, encoded.reason))
            return
        if record is None and item.id in self._rewritten:
            record = item.stored  # as stored, but the source named it earlier with other content
        if record is None:
            self._counts["unchanged"] += 1
            return
        if self.refuse_clash:
            _check_clash(item.stored, record)
        if record.id in self._waiting:  # the source names it twice: the last one wins
            self._commit()
        self._waiting[record.id] = record
        if item.stored is not None:
            self._rewritten.add(record.id)
            if record.label != item.stored.label:
                self._relabelled[record.id] = item.stored.label

    def _commit_if_due(self) -> None:
        # Only between batches: a run that resumes here has the same batches as this one.
        most = COMMIT_IMAGES * (self.engine.workers if self.engine else 1)
        late = time.monotonic() - self._since >= COMMIT_SECONDS
        if self.store.manifest.owns_codebooks and not len(self.store):
            most, late = max(most, FIT_IMAGES), False
        elif needs_fit_before_adding(self.store):  # seldom, since each fit loses a little
            most, late = max(most, min(len(self.store), FIT_IMAGES)), False
        if len(self._waiting) >= most or late:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting = list(self._waiting.values()), {}
        self._since = time.monotonic()
        if records:
            write = self.engine.write if self.engine else write_here
            replaced = self.store.put(records, write=write, finish=self._code)
            self._relabelled.clear()
            self._counts["replaced"] += replaced
            self._counts["added"] += len(records) - replaced

    def _code(self, records: Sequence[Record]) -> Sequence[Record]:
        if self.store.manifest.model_fingerprint != self._made_by:
            raise DataError(
                f"The gallery {str(self.store.folder)!r} was upgraded to another model while "
                "images were added. What was added before is in the gallery; run this again to go "
                "on with the new model."
            )
        if not self.store.manifest.owns_codebooks:
            return records
        from phpq.gallery.refit import refit_for

        self._refitted |= refit_for(self.store, records)
        return code_records(self.store, records, self._before, relabelled=self._relabelled)


def needs_fit_before_adding(store: GalleryStore) -> bool:
    """Say whether codebooks must be fitted before rows are added that they fit badly.

    Otherwise they grow, or are fitted afterwards from kept embeddings.
    """
    manifest = store.manifest
    if not manifest.owns_codebooks or manifest.keep_embeddings or not len(store):
        return False
    return not can_grow(store.own_codebooks())


def _check_clash(old: Record | None, new: Record) -> None:
    if old is None or old.uri == new.uri or old.sha256 == new.sha256:
        return
    if old.uri is not None and new.uri is not None and exists(old.uri):
        raise DataError(
            f"The id {new.id!r} already names {old.uri!r}, which still exists; {new.uri!r} is "
            "another image. Keep both with a prefix (prefix='second/', or --prefix second/), or "
            "replace the old one with upsert (--replace)."
        )


def gone_from(store: GalleryStore, root: Path) -> list[str]:
    """Return the ids of images of a folder whose files no longer exist."""
    folder = root.expanduser().absolute()
    if not folder.is_dir():
        raise DataError(f"There is no folder {str(root)!r}; nothing was deleted.")
    gone: list[str] = []
    for batch in store.dataset.to_batches(columns=["id", "uri"]):
        for name, uri in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if uri and Path(uri).is_relative_to(folder) and not Path(uri).is_file():
                gone.append(name)
    return gone
