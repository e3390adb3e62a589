"""Versions of one shard in a process: a version and requests in, answers out.

A version that is not held is loaded from the gallery, so that a process that was just started needs
to be told nothing. Two versions are held, so that a change never takes away what is being asked.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phpq.codes import Codebooks
from phpq.errors import PhpqError
from phpq.gallery.shards import Request, Shard
from phpq.gallery.store import GalleryStore

_HELD = 2
_IDLE_SECONDS = 60.0  # after which a version that nobody asks for makes room


class ShardHost:
    """Holds the last versions of one shard."""

    def __init__(
        self,
        folder: Path,
        codebooks: Codebooks,
        number: int,
        shards: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._codebooks = codebooks
        self._number, self._shards = number, shards
        self._clock = clock
        self._held: OrderedDict[int, tuple[Shard, float]] = OrderedDict()  # with its last use
        self._loading: dict[int, Future[Shard]] = {}
        self._lock = threading.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="phpq-shard-loader")

    @property
    def versions(self) -> list[int]:
        """The versions that are held, the one not asked for longest first."""
        with self._lock:
            return list(self._held)

    def load(self, version: int | None = None) -> Shard:
        """Wait for a version; None is the newest.

        Raises:
            FormatError: If the gallery has it no more, or is damaged.
        """
        if version is None:
            version = GalleryStore.open(self._folder).version
        with self._lock:
            held = self._use(version)
            future = None if held is not None else self._start(version)
        if held is not None:
            return held
        assert future is not None
        try:
            return future.result()
        except PhpqError:
            with self._lock:  # it is told here: the next attempt is a new one
                if self._loading.get(version) is future:
                    del self._loading[version]
            raise

    def answer(self, version: int, requests: Sequence[Request]) -> list[Any] | None:
        """Answer requests at a version.

        Returns:
            One answer per request, a `PhpqError` for those that cannot be answered. None if the
            version is not held: it is being loaded now, and another replica may hold it.

        Raises:
            FormatError: If the version cannot be loaded.
        """
        with self._lock:
            shard = self._use(version)
            future = None if shard is not None else self._start(version)
        if shard is None:
            if future is not None and future.done():  # a failure, or loaded this moment
                shard = future.result()
            else:
                return None
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(request.run(shard))
            except PhpqError as error:
                answers.append(error)
        return answers

    def close(self) -> None:
        """Let go of everything."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _use(self, version: int) -> Shard | None:
        """Return a version that is held, as the last used; forget those that nobody asks for."""
        now = self._clock()
        found = self._held.get(version)
        if found is not None:
            self._held[version] = (found[0], now)
            self._held.move_to_end(version)
        idle = [key for key, (_, used) in self._held.items() if now - used > _IDLE_SECONDS]
        for key in idle:
            if len(self._held) > 1 and key != version:
                del self._held[key]
        return found[0] if found is not None else None

    def _start(self, version: int) -> Future[Shard]:
        """Begin to load a version unless that has begun; a failure is told once."""
        future = self._loading.get(version)
        if future is None:
            future = self._loading[version] = self._loader.submit(self._load, version)
        elif future.done():
            del self._loading[version]
        return future

    def _load(self, version: int) -> Shard:
        with self._lock:
            while len(self._held) >= _HELD:  # before, not after: memory holds two, never three
                self._held.popitem(last=False)
        store = GalleryStore.open(self._folder, version=version)
        shard = Shard(store, self._codebooks, self._number, self._shards)
        shard.prepare()
        with self._lock:
            self._held[version] = (shard, self._clock())
            self._loading.pop(version, None)
        return shard
