"""Follows a gallery on disk: a thread that loads the new version when another process wrote one."""

from __future__ import annotations

import logging
import threading
import time

from phpq.errors import PhpqError
from phpq.gallery.folder import DAMAGE
from phpq.gallery.views import Views

_LOG = logging.getLogger(__name__)


class Follower:
    """Keeps views up to date.

    Args:
        views: Of the gallery.
        seconds: How often to look for changes by other processes.
    """

    def __init__(self, views: Views, *, seconds: float = 1.0) -> None:
        self._views = views
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phpq-reload", daemon=True)

    def start(self) -> None:
        """Begin to look for changes."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            start = time.monotonic()
            try:
                self._views.reload(at_least=self._views.newest())
            except (PhpqError, *DAMAGE):
                # The old view is served on; `phpq gallery verify` tells what is wrong.
                _LOG.exception("the gallery %s cannot be read anew", self._views.folder)
            # A gallery that changes all the time leaves half of the time to its readers.
            pause = max(self._seconds, time.monotonic() - start)
