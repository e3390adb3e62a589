"""Threads that work for requests: never more than fit, and what waits for one thing goes together.

What does not fit is refused at once (503), so that nothing piles up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray
from phpq.serve._refusals import CLOSING, busy

T = TypeVar("T")
PixelArray = NDArray[np.uint8]


class BoundedPool:
    """Threads, and a short queue before them; a request waits `seconds` for its answer."""

    def __init__(self, name: str, *, threads: int, waiting: int, seconds: float) -> None:
        self.name = name
        self.jobs = 0  # that run or wait; changed by several threads
        self._most = threads + waiting
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"phpq-{name}")

    @property
    def full(self) -> bool:
        """Whether another job would be refused."""
        return self.jobs >= self._most

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call `work(*arguments)` in a thread.

        Raises:
            Refused: With 503, at once if the queue is full, later if the time is up. A thread
                cannot be stopped: its place counts as taken until it is done.
        """
        with self._lock:
            if self.full:
                raise busy(f"{self.jobs} requests wait for {self.name}")
            self.jobs += 1
        try:
            future = self._pool.submit(_contained, work, *arguments)
        except RuntimeError as error:
            self._release(None)
            raise busy(CLOSING) from error
        future.add_done_callback(self._release)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError as error:
            raise busy(f"{self.name} took more than {self._seconds:g} seconds") from error

    def close(self) -> None:
        """Drop what waits; what runs comes to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, _: Future[Any] | None) -> None:
        with self._lock:
            self.jobs -= 1


def _contained(work: Callable[..., T], *arguments: Any) -> T:
    """Turn what is no `Exception` (a panic inside a compiled library) into one."""
    try:
        return work(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Something to be done by a `Batcher`."""

    content: Any
    group: int  # only jobs of one group go together
    deadline: float  # of `time.monotonic`
    future: Future[Any] = field(default_factory=Future)

    def result(self) -> Any:
        """Wait for what came of it; raises TimeoutError after the deadline."""
        try:
            return self.future.result(max(0.0, self.deadline - time.monotonic()))
        except TimeoutError:
            self.future.cancel()
            raise


class Batcher(ABC):
    """Does together what waits while a call is under way; a lone job never waits for others."""

    crowded = "too many wait"

    def __init__(self, name: str, *, threads: int, largest: int, waiting: float) -> None:
        self._largest = largest  # jobs of a call
        self._waiting = waiting  # jobs that may wait; more are refused
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @abstractmethod
    def _work(self, batch: list[Job]) -> None:
        """Set the results of jobs of one group; what is raised belongs to all of them."""

    def put(self, content: Any, *, seconds: float, group: int = 0) -> Job:
        """Send a job on its way, for so long."""
        job = Job(content, group, time.monotonic() + seconds)
        with self._changed:
            if self._closed:
                raise busy(CLOSING)
            if len(self._jobs) >= self._waiting:
                raise busy(self.crowded)
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Stop; what waits is refused."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(busy(CLOSING))

    def _run(self) -> None:
        while batch := self._take():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            try:
                if running:
                    self._work(running)
            except Exception as error:  # belongs to those who asked; the thread goes on
                for job in running:
                    if not job.future.done():
                        job.future.set_exception(error)

    def _take(self) -> list[Job]:
        """Wait for jobs; returns neighbours of one group, none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            batch: list[Job] = []
            while self._jobs and len(batch) < self._largest:
                if batch and self._jobs[0].group != batch[0].group:
                    break
                batch.append(self._jobs.popleft())
            return batch


Embed = Callable[[PixelArray], FloatArray]  # (n, 3, S, S) uint8 to (n, D) float32


class Embedder(Batcher):
    """One thread for the models; squares for one model go together."""

    crowded = "too many images wait for the model"

    def __init__(self, *, largest: int = 16, waiting: int = 256) -> None:
        super().__init__("phpq-embedder", threads=1, largest=largest, waiting=waiting)

    def embed(
        self, embed: Embed, square: PixelArray, *, seconds: float, model: int = 0
    ) -> FloatArray:
        """Embed one square, (3, S, S) uint8: (D,) float32; `model` tells models apart."""
        job = self.put((embed, square), seconds=seconds, group=model)
        try:
            embedding: FloatArray = job.result()
        except TimeoutError as error:
            raise busy(f"the model did not get to an image within {seconds:g} seconds") from error
        return embedding

    def close(self) -> None:
        """Stop, once what the model works on is done."""
        super().close()
        for thread in self._threads:
            thread.join()

    def _work(self, batch: list[Job]) -> None:
        embed: Embed = batch[0].content[0]
        embeddings = embed(np.stack([job.content[1] for job in batch]))
        for job, embedding in zip(batch, embeddings, strict=True):
            job.future.set_result(embedding)
