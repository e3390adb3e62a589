"""Sends requests to one shard: those that wait go together in one call, failed calls are retried.

A call to another process costs more than most searches. While one is under way the requests that
arrive wait for each other, so that many clients cost few calls; a lone request never waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from phpq.errors import PhpqError
from phpq.gallery.shards import Request, ShardEvents
from phpq.serve.refusals import Refused, busy

Send = Callable[[int, Sequence[Request], float], list[Any]]
_LARGEST = 64  # requests of one call
_CLOSING = "it is shutting down"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two attempts


class UnavailableError(Exception):
    """A call that did not reach a shard, or whose shard died: another one may succeed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    version: int
    request: Request
    deadline: float
    future: Future[Any] = field(default_factory=Future)


class Dispatcher:
    """Sends requests to one shard.

    Args:
        shard: Its number, for messages and counts.
        send: Called with (version, requests, seconds to wait); returns an answer or a
            `PhpqError` for each request. Raises `UnavailableError` if it is worth another attempt.
        calls: At once.
        seconds: How long a request is tried.
        events: Told of retries and failures.
    """

    def __init__(
        self, shard: int, send: Send, *, calls: int, seconds: float, events: ShardEvents
    ) -> None:
        self._shard = shard
        self._send = send
        self._seconds = seconds
        self._events = events
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"phpq-shard-{shard}", daemon=True)
            for _ in range(calls)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, version: int, request: Request) -> Future[Any]:
        """Send a request on its way; `answer` waits for it."""
        job = _Job(version, request, time.monotonic() + self._seconds)
        with self._changed:
            if self._closed:
                raise busy(_CLOSING)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def answer(self, future: Future[Any]) -> Any:
        """Wait for an answer.

        Raises:
            Refused: With 503, if there is none in time.
            PhpqError: What the shard itself answered.
        """
        try:
            found = future.result(self._seconds)
        except TimeoutError as error:
            future.cancel()
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

    def close(self) -> None:
        """Stop; what waits is refused."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(busy(_CLOSING))

    def _work(self) -> None:
        while batch := self._take():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            try:
                self._call(running)
            except Exception as error:  # belongs to those who asked; the thread goes on
                for job in running:
                    if not job.future.done():
                        job.future.set_exception(error)

    def _take(self) -> list[_Job]:
        """Wait for requests; returns neighbours of one version, none at the end."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            batch: list[_Job] = []
            while self._jobs and len(batch) < _LARGEST:
                if batch and self._jobs[0].version != batch[0].version:
                    break
                batch.append(self._jobs.popleft())
            return batch

    def _call(self, batch: list[_Job]) -> None:
        """Call until there are answers, or the time is up."""
        pause = _FIRST_PAUSE
        while True:
            now = time.monotonic()
            for job in batch:
                if job.deadline <= now:
                    job.future.set_exception(TimeoutError())
            batch = [job for job in batch if job.deadline > now]
            if not batch:
                return
            # The last of them: whoever waits for an earlier one gives up by itself.
            seconds = max(job.deadline for job in batch) - now
            try:
                answers = self._send(batch[0].version, [job.request for job in batch], seconds)
            except UnavailableError:
                if self._closed:
                    raise busy(_CLOSING) from None
                self._events("retries", self._shard)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            for job, found in zip(batch, answers, strict=True):
                job.future.set_result(found)
            return
