"""Bulk add: a source in, commits to the store every few seconds, and a report of what was done.

Images are compared with the gallery as it was when the work began, whatever is committed meanwhile;
where a source names an id twice, the last one holds. So the result does not depend on timing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from phpq.data import SkippedImage
from phpq.data.places import exists
from phpq.errors import BadImageError, DataError, FormatError
from phpq.gallery.encoding import Encoded, Engine, encode_items
from phpq.gallery.fragments import write_here
from phpq.gallery.records import Record, column_name
from phpq.gallery.sources import Item, Source, count_items, read_items
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

Progress = Callable[[str, int, int], None]  # what is done, images done, images in all
COMMIT_IMAGES = 2000
COMMIT_SECONDS = 10.0
_MANY_FILES = 100  # a commit makes a file; more than this are merged at the end
_WINDOW = 4096  # ids looked up at once


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of the images of a source."""

    added: int = 0  # new ids
    unchanged: int = 0  # ids whose content, label and metadata are stored already
    replaced: int = 0  # ids whose content, place, label or metadata is another now
    skipped: tuple[SkippedImage, ...] = ()  # images that cannot be read

    @property
    def seen(self) -> int:
        """Images looked at."""
        return self.added + self.unchanged + self.replaced + len(self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "added": self.added,
            "unchanged": self.unchanged,
            "replaced": self.replaced,
            "skipped": [{"id": image.id, "reason": image.reason} for image in self.skipped],
        }


class Ingest:
    """One bulk add.

    Args:
        store: The gallery on disk.
        model: Encodes.
        batch_size: Images that it sees at once.
        refuse_bad: Stop at an image that cannot be read.
        refuse_clash: Stop at an id that names another file that still exists.
        engine: Who encodes and writes; None is this process.
    """

    def __init__(
        self,
        store: GalleryStore,
        model: Model,
        *,
        batch_size: int = 64,
        refuse_bad: bool = False,
        refuse_clash: bool = True,
        engine: Engine | None = None,
    ) -> None:
        self._store = store
        self._before = store  # the version that images are compared with
        self._model = model
        self._batch_size = batch_size
        self._refuse_bad = refuse_bad
        self._refuse_clash = refuse_clash
        self._engine = engine
        self._waiting: dict[str, Record] = {}
        self._rewritten: set[str] = set()  # ids of the gallery as it was, written since
        self._since = time.monotonic()
        self._skipped: list[SkippedImage] = []
        self._counts: Counter[str] = Counter()

    def run(
        self,
        source: Source,
        progress: Progress | None = None,
        *,
        metadata: Mapping[str, Any],
        prefix: str = "",
    ) -> AddReport:
        """Encode and write a source; what was encoded is committed even if this is interrupted.

        Args:
            source: See `read_items`.
            progress: Called with ("indexing", images done, images in all).
            metadata: Values for all images.
            prefix: Put before every id.
        """
        total = (count_items(source) or 0) if progress else 0
        self._store.refresh()
        self._before = GalleryStore.open(self._store.folder)
        batches = (self._engine.encode if self._engine else encode_items)(
            self._items(source, metadata, prefix),
            self._model,
            batch_size=self._batch_size,
            keep_embeddings=self._store.manifest.keep_embeddings,
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
        self._store.merge_files(above=_MANY_FILES)
        return AddReport(**self._counts, skipped=tuple(self._skipped))

    def _items(self, source: Source, metadata: Mapping[str, Any], prefix: str) -> Iterator[Item]:
        """Yield the images of a source with what the gallery holds under their ids."""
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
            self._before = GalleryStore.open(self._store.folder)
            return self._before.find(ids)

    def _take(self, encoded: Encoded) -> None:
        item, record = encoded.item, encoded.record
        if encoded.reason is not None:
            if self._refuse_bad:
                raise BadImageError(encoded.reason)
            self._skipped.append(SkippedImage(item.id, encoded.reason))
            return
        if record is None and item.id in self._rewritten:
            record = item.stored  # as before, but the source named it earlier with other content
        if record is None:
            self._counts["unchanged"] += 1
            return
        if self._refuse_clash:
            _check_clash(item.stored, record)
        if record.id in self._waiting:  # the source names it twice: the last one holds
            self._commit()
        self._waiting[record.id] = record
        if item.stored is not None:
            self._rewritten.add(record.id)

    def _commit_if_due(self) -> None:
        # Between batches only: a run that goes on from here sees the batches that this one saw.
        most = COMMIT_IMAGES * (self._engine.workers if self._engine else 1)
        if len(self._waiting) >= most or time.monotonic() - self._since >= COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting = list(self._waiting.values()), {}
        self._since = time.monotonic()
        if records:
            write = self._engine.write if self._engine else write_here
            replaced = self._store.put(records, write=write)
            self._counts["replaced"] += replaced
            self._counts["added"] += len(records) - replaced


def _check_clash(old: Record | None, new: Record) -> None:
    if old is None or old.uri == new.uri or old.sha256 == new.sha256:
        return
    if old.uri is not None and new.uri is not None and exists(old.uri):
        raise DataError(
            f"The id {new.id!r} already names {old.uri!r}, which still exists; {new.uri!r} is "
            "another image. Keep both with a prefix (prefix='second/', or --prefix second/), or "
            "replace the old one with upsert (--replace)."
        )
