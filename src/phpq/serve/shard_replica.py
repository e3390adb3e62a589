"""One process that holds a shard, and the Ray Serve application of all such processes.

A version that is not held is loaded from the gallery, so that a process that was just started needs
to be told nothing. Two versions are held, so that a change never takes away what is being asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phpq.cluster.connection import import_serve
from phpq.codes import Codebooks
from phpq.errors import PhpqError
from phpq.gallery.shards import Request, Shard
from phpq.gallery.store import GalleryStore

CALLS = 2  # at once for each replica: while one searches, the next is read or written
_HELD = 2
_IDLE_SECONDS = 60.0  # after which a version that nobody asks for makes room
_ONGOING = 16  # of a replica: the calls of several servers, and loads
_HEALTH_SECONDS = 1.0  # between two looks at a replica: a dead one is replaced that soon


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answers."""

    replica: str  # tells this process from the one that was there before
    answers: list[Any] | None  # one per request; None if the version is not held yet
    failure: PhpqError | None = None  # why the version cannot be had at all


class ShardReplica:
    """One process that holds a shard; made by Ray Serve, again whenever it dies."""

    def __init__(
        self, folder: str, codebooks: Codebooks, number: int, shards: int, *others: object
    ) -> None:
        self._name = uuid.uuid4().hex
        self._host = ShardHost(Path(folder), codebooks, number, shards)
        self._host.load()  # it is ready when it can answer
        self._pool = ThreadPoolExecutor(CALLS, thread_name_prefix="phpq-shard")
        self._loads = ThreadPoolExecutor(4, thread_name_prefix="phpq-shard-load")

    async def ask(self, version: int, requests: Sequence[Request]) -> Reply:
        """Answer requests at a version, or say that it is not held yet."""
        return await self._run(self._pool, lambda: self._host.answer(version, requests))

    async def load(self, version: int) -> Reply:
        """Wait for a version; the answer is the number of its rows here."""
        return await self._run(self._loads, lambda: [len(self._host.load(version))])

    async def ping(self) -> Reply:
        """Say that the replica is there, however much it has to do."""
        return Reply(self._name, [])

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], list[Any] | None]) -> Reply:
        try:
            answers = await asyncio.get_running_loop().run_in_executor(pool, work)
        except PhpqError as error:
            return Reply(self._name, None, error)
        return Reply(self._name, answers)


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
        # Each with its last use; the one not asked for longest first.
        self._held: OrderedDict[int, tuple[Shard, float]] = OrderedDict()
        self._loading: dict[int, Future[Shard]] = {}
        self._lock = threading.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="phpq-shard-loader")

    def load(self, version: int | None = None) -> Shard:
        """Wait for a version, None is the newest; a `FormatError` if it cannot be loaded."""
        if version is None:
            version = GalleryStore.open(self._folder).version
        found = self._find(version)
        if not isinstance(found, Future):
            return found
        try:
            return found.result()
        except PhpqError:
            with self._lock:  # it is told here: the next attempt is a new one
                if self._loading.get(version) is found:
                    del self._loading[version]
            raise

    def answer(self, version: int, requests: Sequence[Request]) -> list[Any] | None:
        """Answer requests at a version; raises a `FormatError` if it cannot be loaded.

        Returns:
            One answer per request, a `PhpqError` for those that cannot be answered. None if the
            version is not held: it is being loaded now, and another replica may hold it.
        """
        shard = self._find(version)
        if isinstance(shard, Future):
            if not shard.done():
                return None
            shard = shard.result()  # a failure, or loaded this moment
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(request.run(shard))
            except PhpqError as error:
                answers.append(error)
        return answers

    def _find(self, version: int) -> Shard | Future[Shard]:
        """Return a version that is held, or on its way, from now on; a failure is told once."""
        now = self._clock()
        with self._lock:
            found = self._held.get(version)
            if found is not None:
                self._held[version] = (found[0], now)
                self._held.move_to_end(version)
            idle = [key for key, (_, used) in self._held.items() if now - used > _IDLE_SECONDS]
            for key in idle:
                if len(self._held) > 1 and key != version:
                    del self._held[key]
            if found is not None:
                return found[0]
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
        books, manifest = store.codebooks(self._codebooks), store.manifest
        if (books.num_codebooks, books.codebook_size) != manifest.code_shape:
            # The gallery was upgraded. An index asks codebooks for their sizes and no more.
            books = Codebooks(np.zeros((*manifest.code_shape, 1), np.float32), unit=False)
        shard = Shard(store, books, self._number, self._shards)
        shard.prepare()
        with self._lock:
            self._held[version] = (shard, self._clock())
            self._loading.pop(version, None)
        return shard


def application_name(folder: Path, codebooks: Codebooks, shards: int) -> str:
    """Return the name that all servers of a gallery, cut in the same way, find its shards by."""
    place = folder.resolve()
    told = f"{place}\n{codebooks.fingerprint()}\n{shards}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:10]
    return f"phpq-{re.sub(r'[^A-Za-z0-9_.-]+', '-', place.name)}-{digest}"


def deployment_name(shard: int) -> str:
    """Return the name of a shard in the application."""
    return f"shard-{shard}"


def shard_application(folder: Path, codebooks: Codebooks, shards: int, replicas: int) -> Any:
    """Return the application, ready for `ray.serve.run`."""
    serve = import_serve()

    def bound(number: int, *others: Any) -> Any:
        deployment = serve.deployment(
            ShardReplica,
            name=deployment_name(number),
            num_replicas=replicas,
            ray_actor_options={"num_cpus": 1},
            max_ongoing_requests=_ONGOING,
            health_check_period_s=_HEALTH_SECONDS,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=2.0,
            # A line for each call would cost more than the search.
            logging_config=serve.schema.LoggingConfig(log_level="WARNING", enable_access_log=False),
        )
        return deployment.bind(str(folder.resolve()), codebooks, number, shards, *others)

    return bound(0, *[bound(number) for number in range(1, shards)])
