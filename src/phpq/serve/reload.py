"""The snapshot that is served, and its replacement when the gallery changes: whole, in one step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from phpq.codes import Codebooks
from phpq.errors import FormatError, PhpqError
from phpq.gallery.damage import DAMAGE, newest_seen
from phpq.serve.shards.parts import Shards
from phpq.serve.snapshot import Snapshot

_ATTEMPTS = 5  # to load a gallery that others compact all the time
_PAUSE = 0.05  # seconds between two
_LOG = logging.getLogger(__name__)


class Snapshots:
    """Holds the newest snapshot of a gallery.

    Args:
        folder: The gallery.
        codebooks: Of its model.
        seconds: How often to look for changes by other processes.
        changed: Called with each new snapshot.
        shards: Hold the codes; by default one, in this process.
    """

    def __init__(
        self,
        folder: Path,
        codebooks: Codebooks,
        *,
        seconds: float = 1.0,
        changed: Callable[[Snapshot], None] | None = None,
        shards: Shards | None = None,
    ) -> None:
        self._folder = folder
        self._codebooks = codebooks
        self._shards = shards
        self._seconds = seconds
        self._changed = changed or (lambda _: None)
        self._loading = threading.Lock()
        self._stop = threading.Event()
        self._current = Snapshot(folder, codebooks, shards)
        self._changed(self._current)
        self._thread = threading.Thread(target=self._watch, name="phpq-reload", daemon=True)

    @property
    def current(self) -> Snapshot:
        """The newest snapshot; hold on to it for the whole of a request."""
        return self._current

    def start(self) -> None:
        """Begin to look for changes."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def reload(self, *, at_least: int | None = None) -> Snapshot:
        """Load the newest version.

        Args:
            at_least: Nothing is done where this version, or a newer one, is served already: many
                writers share one reload. None loads in any case.
        """
        with self._loading:
            if at_least is None or self._current.version < at_least:
                fresh = self._load()
                self._current = fresh  # one assignment: readers see the old one or the new one
                self._changed(fresh)
            return self._current

    def renew(self, old: Snapshot) -> Snapshot:
        """Return a newer snapshot than `old` if the gallery has one, or else `old`."""
        if self._current is old and self.newest() <= old.version:
            return old
        return self.reload(at_least=old.version + 1)

    def _load(self) -> Snapshot:
        """Load the newest version; again if a writer removed it while it was read."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return Snapshot(self._folder, self._codebooks, self._shards)
            except FormatError:
                time.sleep(_PAUSE)
        return Snapshot(self._folder, self._codebooks, self._shards)

    def _watch(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            start = time.monotonic()
            try:
                newest = self.newest()
                if newest > self._current.version:
                    self.reload(at_least=newest)
            except (PhpqError, *DAMAGE):
                # The old snapshot is served on; `phpq gallery verify` says what is wrong.
                _LOG.exception("the gallery %s cannot be read anew", self._folder)
            # A gallery that changes all the time leaves half of the time to its readers.
            pause = max(self._seconds, time.monotonic() - start)

    def newest(self) -> int:
        """Return the newest version on disk."""
        return newest_seen(self._folder) or int(self._current.store.dataset.latest_version)
