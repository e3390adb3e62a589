"""One thread for the model: squares of many requests in, embeddings out, embedded together.

Requests that wait while the model is at work are taken as one batch, so that many clients cost
little more than one; a lone request never waits for others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray
from phpq.serve.refusals import busy

Embed = Callable[[NDArray[np.uint8]], FloatArray]
_Job = tuple[NDArray[np.uint8], "Future[FloatArray]"]


class Embedder:
    """Embeds squares one batch at a time.

    Args:
        embed: (n, 3, S, S) uint8 to (n, D) float32.
        largest: Squares of a batch.
        waiting: Squares that may wait; more are refused.
    """

    def __init__(self, embed: Embed, *, largest: int = 16, waiting: int = 256) -> None:
        self._embed = embed
        self._largest = largest
        self._jobs: queue.Queue[_Job | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="phpq-embedder", daemon=True)
        self._thread.start()

    def embed(self, square: NDArray[np.uint8], *, seconds: float) -> FloatArray:
        """Embed one square.

        Returns:
            (D,) float32.
        """
        future: Future[FloatArray] = Future()
        try:
            self._jobs.put_nowait((square, future))
        except queue.Full as error:
            raise busy("too many images wait for the model") from error
        try:
            return future.result(seconds)
        except TimeoutError as error:
            future.cancel()
            raise busy(f"the model did not get to an image within {seconds:g} seconds") from error

    def close(self) -> None:
        """Stop the thread once it has done what waits."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, last = [job], False
            while len(batch) < self._largest:
                try:
                    other = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if other is None:
                    last = True
                    break
                batch.append(other)
            self._finish([job for job in batch if job[1].set_running_or_notify_cancel()])
            if last:
                return

    def _finish(self, batch: list[_Job]) -> None:
        if not batch:
            return
        try:
            embeddings = self._embed(np.stack([square for square, _ in batch]))
        except Exception as error:  # belongs to those who asked; the thread goes on
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), embedding in zip(batch, embeddings, strict=True):
            future.set_result(embedding)
