"""Bulk add: a source in, commits to the store every few seconds, and a report of what was done.

Images are compared with the gallery as it was when the work began, whatever is committed meanwhile;
where a source names an id twice, the last one holds. So the result does not hang on timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phpq.data import SkippedImage
from phpq.data.places import exists
from phpq.errors import BadImageError, DataError, FormatError
from phpq.gallery.encoding import Encoded, Encoder
from phpq.gallery.engine import Engine, LocalEngine
from phpq.gallery.live import LiveCodes
from phpq.gallery.records import Record, column_name
from phpq.gallery.sources import Item, Source, count_items, read_items
from phpq.gallery.store import GalleryStore

Progress = Callable[[str, int, int], None]  # what is done, images done, images in all
COMMIT_IMAGES = 2000
COMMIT_SECONDS = 10.0
_MANY_FILES = 100  # a commit makes a file; more than this are merged at the end


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of the images of a source.

    Attributes:
        added: New ids.
        unchanged: Ids whose content, label and metadata are stored already.
        replaced: Ids whose content, place, label or metadata is another now.
        skipped: Images that cannot be read, and why.
    """

    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    skipped: tuple[SkippedImage, ...] = ()

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


@dataclass(slots=True)
class _Tally:
    seen: int = 0
    added: int = 0
    unchanged: int = 0
    replaced: int = 0
    skipped: list[SkippedImage] = field(default_factory=list)


class Ingest:
    """One bulk add.

    Args:
        store: The gallery on disk.
        live: Its codes in memory; what is written becomes searchable there.
        encoder: The model.
        refuse_bad: Stop at an image that cannot be read.
        refuse_clash: Stop at an id that names another file that still exists.
        engine: Who encodes and writes.
    """

    def __init__(
        self,
        store: GalleryStore,
        live: LiveCodes,
        encoder: Encoder,
        *,
        refuse_bad: bool = False,
        refuse_clash: bool = True,
        engine: Engine | None = None,
    ) -> None:
        self._store = store
        self._engine = engine or LocalEngine()
        self._before = store  # the version that images are compared with
        self._live = live
        self._encoder = encoder
        self._refuse_bad = refuse_bad
        self._refuse_clash = refuse_clash
        self._waiting: dict[str, Record] = {}
        self._rewritten: set[str] = set()  # ids of the gallery as it was, written since
        self._since = time.monotonic()
        self._tally = _Tally()

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
        batches = self._engine.encode(
            _adjusted(read_items(source), metadata, prefix),
            self._find,
            self._encoder,
            keep_embeddings=self._store.manifest.keep_embeddings,
        )
        try:
            for batch in batches:
                for encoded in batch:
                    self._take(encoded)
                self._commit_if_due()
                if progress:
                    progress("indexing", self._tally.seen, max(total, self._tally.seen))
        finally:
            batches.close()  # its threads stop
            self._commit()
        self._store.merge_files(above=_MANY_FILES)
        tally = self._tally
        return AddReport(tally.added, tally.unchanged, tally.replaced, tuple(tally.skipped))

    def _find(self, ids: Sequence[str]) -> Mapping[str, Record]:
        try:
            return self._before.find(ids)
        except FormatError:
            # Another process may have compacted the gallery and removed the version we read.
            self._before = GalleryStore.open(self._store.folder)
            return self._before.find(ids)

    def _take(self, encoded: Encoded) -> None:
        tally, stored = self._tally, encoded.stored
        tally.seen += 1
        if encoded.skipped is not None:
            if self._refuse_bad:
                raise BadImageError(encoded.skipped.reason)
            tally.skipped.append(encoded.skipped)
            return
        record = encoded.record
        if record is None and stored is not None and stored.id in self._rewritten:
            record = stored  # as before, but the source named it earlier with other content
        if record is None:
            tally.unchanged += 1
            return
        if self._refuse_clash:
            _check_clash(encoded)
        if record.id in self._waiting:  # the source names it twice: the last one holds
            self._commit()
        self._waiting[record.id] = record
        if stored is not None:
            self._rewritten.add(record.id)

    def _commit_if_due(self) -> None:
        # Between batches only: a run that goes on from here sees the batches that this one saw.
        full = len(self._waiting) >= COMMIT_IMAGES * self._engine.workers
        if full or time.monotonic() - self._since >= COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting = list(self._waiting.values()), {}
        self._since = time.monotonic()
        if records:
            written = self._live.put(records, write=self._engine.write)
            self._tally.replaced += len(written.replaced)
            self._tally.added += len(records) - len(written.replaced)


def _adjusted(items: Iterator[Item], metadata: Mapping[str, Any], prefix: str) -> Iterator[Item]:
    shared = {column_name(name): value for name, value in metadata.items()}
    for item in items:
        if shared or prefix:
            yield replace(item, id=prefix + item.id, metadata={**item.metadata, **shared})
        else:
            yield item


def _check_clash(encoded: Encoded) -> None:
    old, new = encoded.stored, encoded.record
    if old is None or new is None or old.uri == new.uri or old.sha256 == new.sha256:
        return
    if old.uri is not None and new.uri is not None and exists(old.uri):
        raise DataError(
            f"The id {new.id!r} already names {old.uri!r}, which still exists; {new.uri!r} is "
            "another image. Keep both with a prefix (prefix='second/', or --prefix second/), or "
            "replace the old one with upsert (--replace)."
        )
