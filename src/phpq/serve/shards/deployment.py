"""Shards as Ray Serve deployments: what runs in each replica, and the application of all shards."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phpq.cluster.connection import import_serve
from phpq.codes import Codebooks
from phpq.errors import PhpqError
from phpq.gallery.shards import Request
from phpq.serve.shards.host import ShardHost
from phpq.serve.shards.settings import Sharding

CALLS = 2  # at once for each replica: while one searches, the next is read or written
_ONGOING = 16  # of a replica: the calls of several servers, and loads
_HEALTH_SECONDS = 1.0  # between two looks at a replica: a dead one is replaced that soon


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answers.

    Attributes:
        replica: Tells this process from the one that was there before.
        answers: One per request; None if the version is not held yet.
        failure: Why the version cannot be had at all.
    """

    replica: str
    answers: list[Any] | None
    failure: PhpqError | None = None


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


def application_name(folder: Path, codebooks: Codebooks, shards: int) -> str:
    """Return the name that all servers of a gallery, cut in the same way, find its shards by."""
    place = folder.resolve()
    told = f"{place}\n{codebooks.fingerprint()}\n{shards}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:10]
    return f"phpq-{re.sub(r'[^A-Za-z0-9_.-]+', '-', place.name)}-{digest}"


def deployment_name(shard: int) -> str:
    """Return the name of a shard in the application."""
    return f"shard-{shard}"


def shard_application(folder: Path, codebooks: Codebooks, sharding: Sharding) -> Any:
    """Return the application, ready for `ray.serve.run`."""
    serve = import_serve()

    def deployment(number: int) -> Any:
        return serve.deployment(
            ShardReplica,
            name=deployment_name(number),
            num_replicas=sharding.replicas,
            ray_actor_options={"num_cpus": 1},
            max_ongoing_requests=_ONGOING,
            health_check_period_s=_HEALTH_SECONDS,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=2.0,
            # A line for each call would cost more than the search.
            logging_config=serve.schema.LoggingConfig(log_level="WARNING", enable_access_log=False),
        )

    place = str(folder.resolve())
    others = [
        deployment(number).bind(place, codebooks, number, sharding.shards)
        for number in range(1, sharding.shards)
    ]
    return deployment(0).bind(place, codebooks, 0, sharding.shards, *others)
