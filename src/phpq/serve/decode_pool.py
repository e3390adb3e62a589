"""A bounded pool of processes that decode images: bytes of strangers in, pixels out.

Image parsers are the part of a server that strangers reach most easily. Here a parser that hangs,
crashes or takes too much memory ends one process, which is replaced, and nothing else. Messages are
JSON and raw bytes, never pickles: what a process says that a stranger took over is only data. A
process is this module: `python -m phpq.serve.decode_pool`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.config import DataConfig
from phpq.data.boxes import Box, cut_out
from phpq.data.decode import decode_square, image_format, read_image
from phpq.errors import BadImageError, ConfigError
from phpq.serve._refusals import CLOSING, busy

_START_SECONDS = 60.0  # for a new process to import what it needs, on a busy machine
_LENGTHS = struct.Struct(">II")  # bytes of the head, bytes of the content
_LONGEST_HEAD = 1 << 20
_BYTES_PER_PIXEL = 32  # several copies of an image, and what decoders need themselves
_BASE_BYTES = 2 << 30  # the interpreter and its libraries, address space rather than memory
_JPEG_QUALITY = 85


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What a process made of an image."""

    content: bytes  # pixels or a JPEG
    shape: tuple[int, ...]  # of the pixels, or width and height
    format: str  # of the file, as Pillow names it


class DecodePool:
    """`count` processes, started when they are first needed, and replaced when they die."""

    def __init__(self, count: int, *, max_pixels: int, seconds: float) -> None:
        self.max_pixels = max_pixels  # of an image; one with more is refused from its header
        self.seconds = seconds  # a process that takes longer is killed, and the image refused
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._closed = False

    def start(self) -> None:
        """Start one process now rather than at the first request."""
        self._give_back(self._take() or _Process())

    def square(
        self, content: bytes, config: DataConfig, *, name: str, box: Box | None = None
    ) -> NDArray[np.uint8]:
        """Turn an image, or a box on it, into the square that a model sees: (3, S, S) uint8."""
        head = {"job": "square", "store_size": config.store_size, "fit": config.fit}
        return _pixels(self._run(head | {"name": name} | _part(box), content))

    def thumbnail(self, content: bytes, size: int, *, name: str) -> Decoded:
        """Turn an image into a JPEG of at most `size` x `size` pixels."""
        return self._run({"job": "thumbnail", "size": size, "name": name}, content)

    def pixels(
        self, content: bytes, size: int, *, name: str, box: Box | None = None
    ) -> NDArray[np.uint8]:
        """Turn an image, or a box on it, into (h, w, 3) uint8, the longer side at most `size`."""
        head = {"job": "pixels", "size": size, "name": name}
        return _pixels(self._run(head | _part(box), content))

    def check(self, content: bytes, *, name: str) -> Decoded:
        """Decode an image to see that it is one; gives its format and size."""
        return self._run({"job": "check", "name": name}, content)

    def close(self) -> None:
        """Stop all processes; one that is at work stops when it is done."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None:
                    process.stop()

    def _run(self, head: dict[str, Any], content: bytes) -> Decoded:
        if not content:
            raise BadImageError(f"Cannot read the image {head['name']!r}: the file is empty.")
        process = self._take()
        try:
            if process is not None and not process.alive:
                process.stop()
                process = None
            process = process or _Process()
            whole = head | {"max_pixels": self.max_pixels}
            answer, result = process.ask(whole, content, self.seconds)
        except EOFError as error:
            if process is not None:
                process.stop()
            process = None
            raise BadImageError(
                f"Cannot read the image {head['name']!r}: it takes more than {self.seconds:g} "
                "seconds or too much memory to decode. Save it anew as JPEG or PNG."
            ) from error
        finally:
            self._give_back(process)
        if "bad" in answer:
            raise (ConfigError if answer.get("box") else BadImageError)(answer["bad"])
        return Decoded(result, tuple(answer["shape"]), answer["format"])

    def _take(self) -> _Process | None:
        """Wait for a place; None where a process has to be started."""
        try:
            if not self._closed:
                return self._idle.get(timeout=self.seconds)
        except queue.Empty as error:
            raise busy("all decoders are at work") from error
        raise busy(CLOSING)

    def _give_back(self, process: _Process | None) -> None:
        if self._closed and process is not None:
            process.stop()
        else:
            self._idle.put(process)


class _Process:
    """One process; killed if it does not answer in time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phpq.serve.decode_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # One thread for numeric libraries: it decodes one image at a time.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, head: dict[str, Any], content: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer to one request; raises EOFError if none came in time."""
        if not self._ready:
            self._exchange(None, b"", _START_SECONDS)
            self._ready = True
        return self._exchange(head, content, seconds)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._process.wait()

    def _exchange(
        self, head: dict[str, Any] | None, content: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Send a message, if there is one, and wait for the next of the process."""
        # The process is killed, so that the read below ends: a thread cannot be stopped.
        watch = threading.Timer(seconds, self._process.kill)
        watch.start()
        try:
            if head is not None:
                send(self._process.stdin, head, content)  # type: ignore[arg-type]
            return receive(self._process.stdout)  # type: ignore[arg-type]
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            watch.cancel()


def _part(box: Box | None) -> dict[str, Any]:
    """Return what a head says of the part of an image that is wanted: nothing, of all of it."""
    return {} if box is None else {"box": box}


def _pixels(decoded: Decoded) -> NDArray[np.uint8]:
    return np.frombuffer(decoded.content, np.uint8).reshape(decoded.shape)


def send(stream: BinaryIO, head: dict[str, Any], content: bytes = b"") -> None:
    """Write one message: a head of plain data, and any bytes."""
    encoded = json.dumps(head).encode()
    stream.write(_LENGTHS.pack(len(encoded), len(content)) + encoded)
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Read one message; an EOFError if the other side is gone, or says what nobody understands."""
    lengths = stream.read(_LENGTHS.size)
    head, content = _LENGTHS.unpack(lengths) if len(lengths) == _LENGTHS.size else (0, 0)
    if not 0 < head <= _LONGEST_HEAD:
        raise EOFError(f"a head of {head} bytes")
    said, rest = stream.read(head), stream.read(content)
    if len(said) < head or len(rest) < content:
        raise EOFError("the other side is gone")
    try:
        return dict(json.loads(said)), rest
    except (ValueError, TypeError) as error:
        raise EOFError("a head that is no JSON object") from error


def perform(head: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode one image, as the head that a method of `DecodePool` sends asks for it.

    Returns:
        {"bad": reason}; or the format of the file and, for a square, (3, S, S) uint8 as bytes; for
        pixels and thumbnails, (h, w, 3) uint8 or a JPEG whose longer side is `size` at most.
    """
    name, most = str(head["name"]), int(head["max_pixels"])
    size = int(head.get("size", 0))
    try:
        part = None
        if "box" in head:
            part = cut_out(content, tuple(head["box"]), name=name, max_pixels=most)
        if head["job"] == "square":
            config = DataConfig(store_size=head["store_size"], fit=head["fit"], max_pixels=most)
            square = decode_square(part or content, config, name=name)
            return {"shape": square.shape, "format": image_format(content)}, square.tobytes()
        image = part or read_image(content, name=name, max_pixels=most, draft=size)
        if head["job"] == "check":
            return {"shape": image.size, "format": image_format(content)}, b""
        image.thumbnail((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
        if head["job"] == "pixels":
            return {"shape": (image.height, image.width, 3), "format": ""}, image.tobytes()
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_JPEG_QUALITY, progressive=True)
        return {"shape": image.size, "format": "JPEG"}, stream.getvalue()
    except BadImageError as error:
        return {"bad": str(error)}, b""
    except ConfigError as error:
        return {"bad": str(error), "box": True}, b""
    except MemoryError:
        return {"bad": f"Cannot read the image {name!r}: it takes too much memory."}, b""


def main() -> None:
    """Answer requests from stdin on stdout until stdin ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    send(answers, {"ready": True})
    with contextlib.suppress(EOFError):
        while True:
            head, content = receive(requests)
            limit_memory(_BASE_BYTES + _BYTES_PER_PIXEL * int(head["max_pixels"]))
            send(answers, *perform(head, content))


def limit_memory(count: int) -> None:
    """Keep this process from taking more than `count` bytes, where the system can."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
