"""Shards without Ray: handles that call replicas of this process, and die when they are told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from phpq.codes import Codebooks
from phpq.serve.ray_shards import RayShards
from phpq.serve.settings import Sharding
from phpq.serve.shard_replica import ShardReplica


class TwinHandle:
    """Does what a handle of Ray Serve does, for one replica in this process."""

    def __init__(self, start: Callable[[], ShardReplica]) -> None:
        self._start = start
        self._replica: ShardReplica | None = start()
        self._lock = threading.Lock()
        self.calls: list[int] = []  # requests of each call
        self.dead_until = 0.0

    def kill(self, seconds: float) -> None:
        """Lose the replica; a new one is there after a while."""
        with self._lock:
            self.dead_until = time.monotonic() + seconds
            self._replica = None

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            if time.monotonic() < self.dead_until:
                raise RayActorError
            if self._replica is None:
                self._replica = self._start()
            replica = self._replica
        if method == "ask":
            self.calls.append(len(arguments[1]))
        reply = asyncio.run(getattr(replica, method)(*arguments))
        if self._replica is not replica:  # it died while it was at work
            raise RayActorError
        return reply

    def __getattr__(self, method: str) -> TwinMethod:
        return TwinMethod(self, method)


class TwinMethod:
    def __init__(self, handle: TwinHandle, method: str) -> None:
        self._handle, self._method = handle, method

    def remote(self, *arguments: Any) -> TwinResponse:
        return TwinResponse(lambda: self._handle.call(self._method, arguments))


class TwinResponse:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def result(self, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        return self._work()

    def cancel(self) -> None: ...


def twin_shards(
    folder: Path, codebooks: Codebooks, sharding: Sharding
) -> tuple[RayShards, list[TwinHandle]]:
    """Return what `ray_shards` yields, and the handles to kill."""

    def handle(number: int) -> TwinHandle:
        return TwinHandle(lambda: ShardReplica(str(folder), codebooks, number, sharding.shards))

    handles = [handle(number) for number in range(sharding.shards)]
    return RayShards(handles, sharding), handles
