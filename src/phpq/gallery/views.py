"""The view that is read now, and its replacement when the gallery changes: whole, in one step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from phpq.codes import Codebooks
from phpq.errors import FormatError
from phpq.gallery.folder import Manifest, newest_seen
from phpq.gallery.shards import Shards
from phpq.gallery.store import GalleryStore
from phpq.gallery.view import GalleryView

if TYPE_CHECKING:
    from phpq.model import Model

T = TypeVar("T")
_ATTEMPTS = 5  # to read from a gallery that others compact all the time
_PAUSE = 0.05  # seconds between two


class Views:
    """Holds one view of a gallery, made when it is first needed.

    `made_by` gives the model of a version, which is loaded before its view takes the place of the
    old one; or it is the codebooks of the one model of all versions, if nobody asks by image.
    `changed` is called with each new view before it is read.
    """

    def __init__(
        self,
        folder: Path,
        made_by: Codebooks | Callable[[Manifest], Model],
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
        """The newest view that was loaded; hold on to it for the whole of a request."""
        return self._current or self.reload(at_least=0)

    def reload(self, *, at_least: int | None = None) -> GalleryView:
        """Load the newest version, unless `at_least` is given and that one or a newer is held."""
        with self._loading:
            held = self._current
            if held is not None and at_least is not None and held.version >= at_least:
                return held
            return self._swap(self._load_newest())

    def at(self, version: int) -> GalleryView:
        """Return the view of one version, loaded unless it is held."""
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
        """Call `work` with one view; with a newer one if that one is gone.

        Another process may have compacted the gallery and removed the version that is read.
        """
        view = self.current
        for _ in range(_ATTEMPTS - 1):
            try:
                return work(view)
            except FormatError:
                newer = self.renew(view)
                if newer is view:  # not gone, but damaged
                    raise
                view = newer
        return work(view)

    def newest(self) -> int:
        """Return the newest version on disk."""
        return newest_seen(self.folder) or int(self.current.store.dataset.latest_version)

    def _swap(self, fresh: GalleryView) -> GalleryView:
        self._changed(fresh)
        self._current = fresh  # one assignment: readers see the old one or the new one
        return fresh

    def _load(self, version: int | None = None) -> GalleryView:
        store = GalleryStore.open(self.folder, version=version)
        held = self._current
        if held is not None and not held.store.manifest.same_gallery(store.manifest):
            raise FormatError(
                f"The gallery {str(self.folder)!r} was made anew, perhaps by another model, while "
                "it was open. Open it again, or start the server again."
            )
        if isinstance(self._made_by, Codebooks):
            view = GalleryView(store, self._made_by, self._shards)
        else:
            model = self._made_by(store.manifest)
            view = GalleryView(store, model.codebooks, self._shards, model)
        if held is None:  # once: a gallery may change all the time
            store.copy()
        return view

    def _load_newest(self) -> GalleryView:
        """Load the newest version; again if a writer removed it while it was read."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._load()
            except FormatError:
                time.sleep(_PAUSE)
        return self._load()
