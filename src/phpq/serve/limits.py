"""Bounds on work: a pool with a short queue, and a number of requests a second for each client.

What does not fit is refused at once (503, 429), so that nothing piles up.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from phpq.serve.refusals import Refused, busy

T = TypeVar("T")
_MOST_CLIENTS = 10_000  # remembered at once; the one not seen for longest is forgotten


class BoundedPool:
    """Threads, and a short queue before them; a request waits `seconds` for its answer."""

    def __init__(self, name: str, *, threads: int, waiting: int, seconds: float) -> None:
        self.name = name
        self._most = threads + waiting
        self._seconds = seconds
        self._jobs = 0  # that run or wait; touched by several threads
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"phpq-{name}")

    @property
    def jobs(self) -> int:
        """Jobs that run or wait."""
        return self._jobs

    @property
    def full(self) -> bool:
        """Whether another job would be refused."""
        return self._jobs >= self._most

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call `work(*arguments)` in a thread.

        Raises:
            Refused: With 503, at once if the queue is full, later if the time is up. A thread
                cannot be stopped: its place counts as taken until it is done.
        """
        with self._lock:
            if self._jobs >= self._most:
                raise busy(f"{self._jobs} requests wait for {self.name}")
            self._jobs += 1
        try:
            future = self._pool.submit(_contained, work, *arguments)
        except RuntimeError as error:  # the server is shutting down
            self._release(None)
            raise busy("it is shutting down") from error
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
            self._jobs -= 1


def _contained(work: Callable[..., T], *arguments: Any) -> T:
    """Turn what is no `Exception` (a panic inside a compiled library) into one."""
    try:
        return work(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class RateLimit:
    """A bucket of tokens for each client, filled at a steady rate.

    Args:
        rate: Requests a second in the long run; 0 is no limit.
        burst: Requests at once.
        clock: Seconds, ever growing.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, since when

    def take(self, client: str) -> None:
        """Count one request.

        Raises:
            Refused: With 429 and the seconds to wait, if the client has made too many.
        """
        if not self._rate:
            return
        now = self._clock()
        tokens, since = self._buckets.get(client, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        self._buckets.move_to_end(client)
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = max(1, math.ceil((1 - tokens) / self._rate))
            raise Refused(
                429,
                "BusyError",
                f"More than {self._rate:g} requests a second from one client. Try again in {wait} "
                "s, or start the server with a larger --rate.",
                retry_after=wait,
            )
