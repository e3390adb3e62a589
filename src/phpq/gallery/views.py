"""The current view of a gallery, and its atomic replacement when the gallery changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from phpq.errors import FormatError
from phpq.gallery.folder import Manifest, newest_seen
from phpq.gallery.shards import Shards
from phpq.gallery.store import GalleryStore
from phpq.gallery.view import GalleryView

if TYPE_CHECKING:
    from phpq.model import Model

T = TypeVar("T")
_ATTEMPTS = 5  # to read a gallery that other processes compact
_PAUSE = 0.05  # seconds between two attempts


class Views:
    """Holds the current view of a gallery, loaded on first use.

    `made_by` gives the model of a version. `changed` is called with each new view before it is
    used.
    """

    def __init__(
        self,
        folder: Path,
        made_by: Callable[[Manifest], Model],
        *,
        shards: Shards | None = None,
        changed: Callable[[GalleryView], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self._made_by = made_by
        self._shards = shards
        self._changed = changed
        self._loading = threading.Lock()
        self._current: GalleryView | None = None

    @property
    def current(self) -> GalleryView:
        """The newest view that was loaded; a request should use one view throughout."""
        return self._current or self.reload(at_least=0)

    def reload(self, *, at_least: int | None = None) -> GalleryView:
        """Load the newest version, unless the current one is `at_least` that version."""
        with self._loading:
            held = self._current
            if held is not None and at_least is not None and held.version >= at_least:
                return held
            return self._swap(self._load_newest())

    def at(self, version: int) -> GalleryView:
        """Return the view of a version, loaded unless it is the current one."""
        held = self._current
        if held is not None and held.version == version:
            return held
        with self._loading:
            return self._swap(self._load(version))

    def renew(self, old: GalleryView) -> GalleryView:
        """Return a newer view than `old` if the gallery has one, or else `old`."""
        if self._current is old and self.newest() <= old.version:
            return old
        return self.reload(at_least=old.version + 1)

    def read(self, work: Callable[[GalleryView], T]) -> T:
        """Call `work` with the current view, and again with a newer one if it fails.

        Another process may have compacted the gallery and removed the version.
        """
        view = self.current
        for _ in range(_ATTEMPTS - 1):
            try:
                return work(view)
            except FormatError:
                newer = self.renew(view)
                if newer is view:  # the version is not gone, but damaged
                    raise
                view = newer
        return work(view)

    def newest(self) -> int:
        """Return the newest version on disk."""
        return newest_seen(self.folder) or int(self.current.store.dataset.latest_version)

    def _swap(self, fresh: GalleryView) -> GalleryView:
        self._changed(fresh)
        self._current = fresh  # atomic: readers see the old view or the new one
        return fresh

    def _load(self, version: int | None = None) -> GalleryView:
        store = GalleryStore.open(self.folder, version=version)
        held = self._current
        if held is not None and not held.store.manifest.same_gallery(store.manifest):
            raise FormatError(
                f"The gallery {str(self.folder)!r} was made anew, perhaps by another model, while "
                "it was open. Open it again, or start the server again."
            )
        model = self._made_by(store.manifest)
        view = GalleryView(store, model.codebooks, self._shards, model)
        if held is None:  # only once: a gallery may change all the time
            store.copy()
        return view

    def _load_newest(self) -> GalleryView:
        """Load the newest version; retries if a writer removed it meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._load()
            except FormatError:
                time.sleep(_PAUSE)
        return self._load()
