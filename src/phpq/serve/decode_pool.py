"""A bounded pool of decoders: bytes of strangers in, pixels out, in bounded time and memory."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from phpq.config import DataConfig
from phpq.errors import BadImageError
from phpq.serve.refusals import busy
from phpq.serve.wire import receive, send

_START_SECONDS = 60.0  # for a new process to import what it needs, on a busy machine


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What a decoder made of an image.

    Attributes:
        content: Pixels or a JPEG.
        shape: Of the pixels, or width and height.
        format: Of the file, as Pillow names it.
    """

    content: bytes
    shape: tuple[int, ...]
    format: str


class _Decoder:
    """One process; killed if it does not answer in time."""

    def __init__(self) -> None:
        # One thread for numeric libraries: it decodes one image at a time.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phpq.serve.decoder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, head: dict[str, Any], content: bytes, seconds: float) -> tuple[Any, bytes]:
        """Return the answer to one request; raises EOFError if none came in time."""
        if not self._ready:
            self._timed(lambda: receive(self._output), _START_SECONDS)
            self._ready = True

        def exchange() -> tuple[Any, bytes]:
            send(self._input, head, content)
            return receive(self._output)

        answer: tuple[Any, bytes] = self._timed(exchange, seconds)
        return answer

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        for stream in (self._input, self._output):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.wait()

    def _timed(self, exchange: Any, seconds: float) -> Any:
        # The process is killed, so that the read below ends: a thread cannot be stopped.
        watch = threading.Timer(seconds, self._process.kill)
        watch.start()
        try:
            return exchange()
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            watch.cancel()

    @property
    def _input(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdin)

    @property
    def _output(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdout)


class DecodePool:
    """Decoders that are started when they are first needed, and replaced when they die.

    Args:
        count: Processes.
        max_pixels: An image with more is refused from its header.
        seconds: A decoder that takes longer is stopped, and the image refused.
    """

    def __init__(self, count: int, *, max_pixels: int, seconds: float) -> None:
        self.max_pixels = max_pixels
        self.seconds = seconds
        self._idle: queue.LifoQueue[_Decoder | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._closed = False

    def start(self) -> None:
        """Start one process now rather than at the first request."""
        decoder = self._take()
        self._give_back(decoder or _Decoder())

    def square(self, content: bytes, config: DataConfig, *, name: str) -> NDArray[np.uint8]:
        """Turn an image into the square that a model sees: (3, S, S) uint8."""
        head = {"job": "square", "store_size": config.store_size, "fit": config.fit}
        done = self._run(head | {"name": name}, content)
        return np.frombuffer(done.content, np.uint8).reshape(done.shape)

    def thumbnail(self, content: bytes, size: int, *, name: str) -> Decoded:
        """Turn an image into a JPEG of at most `size` x `size` pixels."""
        return self._run({"job": "thumbnail", "size": size, "name": name}, content)

    def pixels(self, content: bytes, size: int, *, name: str) -> NDArray[np.uint8]:
        """Turn an image into (h, w, 3) uint8 whose longer side is at most `size`."""
        done = self._run({"job": "pixels", "size": size, "name": name}, content)
        return np.frombuffer(done.content, np.uint8).reshape(done.shape)

    def check(self, content: bytes, *, name: str) -> Decoded:
        """Decode an image to see that it is one; gives its format and size."""
        return self._run({"job": "check", "name": name}, content)

    def close(self) -> None:
        """Stop all processes; one that is at work stops when it is done."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                decoder = self._idle.get_nowait()
                if decoder is not None:
                    decoder.stop()

    def _run(self, head: dict[str, Any], content: bytes) -> Decoded:
        if not content:
            raise BadImageError(f"Cannot read the image {head['name']!r}: the file is empty.")
        decoder = self._take()
        try:
            if decoder is not None and not decoder.alive:
                decoder.stop()
                decoder = None
            decoder = decoder or _Decoder()
            answer, result = decoder.ask(
                head | {"max_pixels": self.max_pixels}, content, self.seconds
            )
        except EOFError as error:
            if decoder is not None:
                decoder.stop()
            decoder = None
            raise BadImageError(
                f"Cannot read the image {head['name']!r}: it takes more than {self.seconds:g} "
                "seconds or too much memory to decode. Save it anew as JPEG or PNG."
            ) from error
        finally:
            self._give_back(decoder)
        if "bad" in answer:
            raise BadImageError(answer["bad"])
        return Decoded(result, tuple(answer["shape"]), answer["format"])

    def _take(self) -> _Decoder | None:
        """Wait for a place; None where a process has to be started."""
        try:
            if not self._closed:
                return self._idle.get(timeout=self.seconds)
        except queue.Empty as error:
            raise busy("all decoders are at work") from error
        raise busy("it is shutting down")

    def _give_back(self, decoder: _Decoder | None) -> None:
        if self._closed and decoder is not None:
            decoder.stop()
        else:
            self._idle.put(decoder)
