"""Shards on a Ray cluster: started or joined, asked through Serve handles, removed at the end.

`ray_shards` gives an app what `LocalShards` gives it in one process. Ray is imported when it is
called, not before.

A call to another process costs more than most searches. While one is under way the requests that
arrive wait for each other, so that many clients cost few calls; a lone request never waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phpq.cluster.connection import connected, import_ray, import_serve
from phpq.codes import Codebooks, IntArray
from phpq.errors import ConfigError, PhpqError
from phpq.gallery.shards import Request, ShardEvents
from phpq.gallery.store import GalleryStore
from phpq.serve._pools import Batcher, Job
from phpq.serve._refusals import CLOSING, Refused, busy
from phpq.serve.settings import Sharding
from phpq.serve.shard_replica import (
    CALLS,
    Reply,
    application_name,
    deployment_name,
    shard_application,
)

_LARGEST = 64  # requests of one call
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two attempts
_FREE_SECONDS = 10.0  # for processors to become free that others have just left
_PING_SECONDS = 2.0
_OBJECT_STORE_BYTES = 100 * 1024 * 1024  # of a cluster of our own: answers are small
Send = Callable[[int, Sequence[Request], float], list[Any]]


class UnavailableError(Exception):
    """A call that did not reach a shard, or whose shard died: another one may succeed."""


class Dispatcher(Batcher):
    """Sends requests to one shard; those that wait go together, failed calls are repeated.

    `send` is called with (version, requests, seconds to wait) and returns an answer or a
    `PhpqError` for each request; it raises `UnavailableError` if it is worth another attempt.
    """

    def __init__(
        self, shard: int, send: Send, *, calls: int, seconds: float, events: ShardEvents
    ) -> None:
        self._shard = shard
        self._send = send
        self._seconds = seconds  # how long a request is tried
        self._events = events  # told of retries and failures
        super().__init__(
            f"phpq-shard-{shard}", threads=calls, largest=_LARGEST, waiting=float("inf")
        )

    def ask(self, version: int, request: Request) -> Job:
        """Send a request on its way; `answer` waits for it."""
        return self.put(request, group=version, seconds=self._seconds)

    def answer(self, job: Job) -> Any:
        """Wait for an answer; raises the error that a shard answers, a 503 if it does not."""
        try:
            found = job.result()
        except TimeoutError as error:
            self._events("failures", self._shard)
            raise Refused(
                503,
                "BusyError",
                f"Shard {self._shard} of the gallery did not answer within {self._seconds:g} "
                "seconds. If its process died, it is being started again; try again in a few "
                "seconds.",
                retry_after=5,
            ) from error
        if isinstance(found, PhpqError):
            raise found
        return found

    def _work(self, batch: list[Job]) -> None:
        """Call until there are answers, or nobody waits any more."""
        pause = _FIRST_PAUSE
        while batch := [job for job in batch if job.deadline > time.monotonic()]:
            # Until the last of them: whoever waits for an earlier one gives up by itself.
            seconds = max(job.deadline for job in batch) - time.monotonic()
            try:
                answers = self._send(batch[0].group, [job.content for job in batch], seconds)
            except UnavailableError:
                if self._closed:
                    raise busy(CLOSING) from None
                self._events("retries", self._shard)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            for job, found in zip(batch, answers, strict=True):
                job.future.set_result(found)
            return


class RayShards:
    """Asks the shards of an application that runs."""

    remote = True

    def __init__(self, handles: Sequence[Any], sharding: Sharding) -> None:
        self._ray = import_ray()
        self._serve_error = import_serve().exceptions.RayServeException
        # Made once: to name a method of a handle is to make a new handle.
        self._methods = [
            {"ask": handle.ask, "load": handle.load, "ping": handle.ping} for handle in handles
        ]
        self._sharding = sharding
        self._events: ShardEvents = lambda event, shard: None
        self._seen: list[set[str]] = [set() for _ in handles]  # replicas that answered
        self._lock = threading.Lock()
        self._dispatchers = [
            Dispatcher(
                number,
                partial(self._send, number),
                calls=CALLS * sharding.replicas,
                seconds=sharding.retry_seconds,
                events=lambda event, shard: self._events(event, shard),
            )
            for number in range(len(handles))
        ]

    def open(self, store: GalleryStore, codebooks: Codebooks) -> RayParts:
        """Have every shard load the version of a store."""
        rows = self._each(partial(self._load, store.version))
        return RayParts(self._dispatchers, store.version, np.cumsum([0, *rows]))

    def report_to(self, events: ShardEvents) -> None:
        """Tell `events` from now on."""
        self._events = events

    def missing(self) -> list[int]:
        """Return the shards that do not answer."""
        return [number for number, there in enumerate(self._each(self._is_there)) if not there]

    def close(self) -> None:
        """Stop asking."""
        for dispatcher in self._dispatchers:
            dispatcher.close()

    def _each(self, work: Callable[[int], int]) -> list[int]:
        """Call `work` with the number of every shard, all at once."""
        with ThreadPoolExecutor(len(self._methods)) as pool:
            return list(pool.map(work, range(len(self._methods))))

    def _is_there(self, number: int) -> bool:
        try:
            self._call(number, "ping", (), _PING_SECONDS)
        except UnavailableError:
            return False
        return True

    def _send(
        self, number: int, version: int, requests: Sequence[Request], seconds: float
    ) -> list[Any]:
        reply = self._call(number, "ask", (version, list(requests)), seconds)
        if reply.failure is not None:
            return [reply.failure] * len(requests)
        if reply.answers is None:
            raise UnavailableError(f"shard {number} does not hold version {version} yet")
        return reply.answers

    def _load(self, version: int, number: int) -> int:
        """Wait until a shard has loaded a version; returns its rows."""
        end = time.monotonic() + self._sharding.load_seconds
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                reply = self._call(number, "load", (version,), left)
                break
            except UnavailableError as error:
                if time.monotonic() >= end:
                    raise Refused(
                        503,
                        "BusyError",
                        f"Shard {number} did not load version {version} of the gallery within "
                        f"{self._sharding.load_seconds:g} seconds.",
                        retry_after=60,
                    ) from error
                time.sleep(0.1)
        if reply.failure is not None:
            raise reply.failure
        assert reply.answers is not None
        return int(reply.answers[0])

    def _call(self, number: int, method: str, arguments: tuple[Any, ...], seconds: float) -> Reply:
        """Call one replica of a shard, whichever Serve chooses."""
        response = None
        try:
            response = self._methods[number][method].remote(*arguments)
            reply: Reply = response.result(timeout_s=seconds)
        except TimeoutError as error:
            if response is not None:
                response.cancel()
            raise UnavailableError(f"shard {number} did not answer in time") from error
        except self._ray.exceptions.RayTaskError:
            raise  # a mistake of ours inside the replica: no further attempt would help
        except (self._ray.exceptions.RayError, self._serve_error) as error:
            raise UnavailableError(f"shard {number}: {type(error).__name__}") from error
        self._note_replica(number, reply.replica)
        return reply

    def _note_replica(self, number: int, replica: str) -> None:
        """Note who answered: one more than there are replicas took the place of another."""
        seen = self._seen[number]
        if replica in seen:
            return
        with self._lock:
            fresh = replica not in seen
            seen.add(replica)
        if fresh and len(seen) > self._sharding.replicas:
            self._events("restarts", number)


class RayParts:
    """The shards at one version; `edges`, (shards + 1,) int64, are the places of each."""

    def __init__(self, dispatchers: Sequence[Dispatcher], version: int, edges: IntArray) -> None:
        self._dispatchers = dispatchers
        self._version = version
        self.edges = edges

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask some shards at once, each its own request; returns the answers by shard."""
        asked = {
            number: self._dispatchers[number].ask(self._version, request)
            for number, request in requests.items()
        }
        return {number: self._dispatchers[number].answer(one) for number, one in asked.items()}

    def memory_bytes(self) -> int:
        """Return 0: the shards are in other processes."""
        return 0


@contextmanager
def ray_shards(folder: Path, codebooks: Codebooks, sharding: Sharding) -> Iterator[RayShards]:
    """Start the shards of a gallery on a Ray cluster, or join those that another server started.

    Yields what `create_app` takes. Who started the shards removes them at the end. It is a
    `ConfigError` if there is no cluster, or it is too small, or the shards cannot start.
    """
    cores = max(os.cpu_count() or 1, sharding.processes)
    with connected(
        sharding.address, num_cpus=cores, object_store_memory=_OBJECT_STORE_BYTES
    ) as ray:
        serve = import_serve()
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled")  # our own server answers HTTP
        name = application_name(folder, codebooks, sharding.shards)
        ours = not _can_be_joined(serve, name)
        try:
            if ours:
                _check_room(ray, sharding)
                application = shard_application(
                    folder, codebooks, sharding.shards, sharding.replicas
                )
                serve.run_many(
                    [serve.RunTarget(application, name, None)],
                    wait_for_ingress_deployment_creation=False,
                    wait_for_applications_running=False,
                )
            _wait_for_shards(serve, name, sharding)
            handles = [
                serve.get_deployment_handle(deployment_name(number), name)
                for number in range(sharding.shards)
            ]
            with closing(RayShards(handles, sharding)) as shards:
                yield shards
        finally:
            if ours:
                serve.delete(name)


def _status(serve: Any, name: str) -> tuple[str, Any]:
    """Return the status of an application, "" where there is none, and what Serve knows of it."""
    found = serve.status().applications.get(name)
    return ("" if found is None else str(found.status.value)), found


def _can_be_joined(serve: Any, name: str) -> bool:
    """Say whether the application is there, or on its way; wait for one that is being removed."""
    end = time.monotonic() + _FREE_SECONDS
    while (status := _status(serve, name)[0]) == "DELETING" and time.monotonic() < end:
        time.sleep(0.2)
    return status not in ("", "DELETING", "NOT_STARTED", "DEPLOY_FAILED")


def _check_room(ray: Any, sharding: Sharding) -> None:
    """Refuse what would wait for processors for ever."""
    end = time.monotonic() + _FREE_SECONDS
    needed = sharding.processes
    while (free := int(ray.available_resources().get("CPU", 0))) < needed:
        has = int(ray.cluster_resources().get("CPU", 0))
        if has < needed or time.monotonic() > end:
            raise ConfigError(
                f"--shards {sharding.shards} --replicas {sharding.replicas} take {needed} "
                f"processors, one for each replica; the cluster at {sharding.address!r} has {has}, "
                f"{free} of them free. Use fewer, or add machines with: ray start --address "
                "HOST:6379"
            )
        time.sleep(0.5)


def _wait_for_shards(serve: Any, name: str, sharding: Sharding) -> None:
    end = time.monotonic() + sharding.start_seconds
    while True:
        status, found = _status(serve, name)
        if status == "RUNNING":
            return
        deployments = {} if found is None else found.deployments
        waiting = [
            number
            for number in range(sharding.shards)
            if deployments.get(deployment_name(number)) is None
            or deployments[deployment_name(number)].status.value != "HEALTHY"
        ]
        if status == "DEPLOY_FAILED" or time.monotonic() > end:
            told = " ".join(entry.message for entry in deployments.values() if entry.message)
            lines = (told or getattr(found, "message", "")).strip().splitlines()
            reason = lines[-1].strip()[-300:] if lines else "no reason was given."
            raise ConfigError(
                f"The shards {', '.join(map(str, waiting))} did not start within "
                f"{sharding.start_seconds:g} seconds: {reason} The folder of the gallery "
                "must be on storage that every machine of the cluster reads under the same path, "
                "and phpq must be installed there."
            )
        time.sleep(0.1)
