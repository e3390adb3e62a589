"""Images behind HTTP, some of which are not handed out before a gate is opened.

What runs on a cluster can be stopped at a known place, whatever the speed of the machine.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image


class GatedImages:
    """Serves numbered images; those from `gated` on wait for the gate.

    Attributes:
        address: Of the server, as in http://127.0.0.1:4000
        gate: Set it to let all through.
    """

    def __init__(self, count: int, *, gated: int) -> None:
        self.contents = [_picture(number) for number in range(count)]
        self.gate = threading.Event()
        self._gated = gated
        self._waiting = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def uris(self) -> list[str]:
        """Return the URI of every image."""
        return [f"{self.address}/{number}.png" for number in range(len(self.contents))]

    def wait_for(self, readers: int, timeout: float = 240.0) -> None:
        """Wait until so many readers stand at the gate."""
        end = time.monotonic() + timeout
        while self._waiting < readers:
            assert time.monotonic() < end, f"{self._waiting} readers at the gate, not {readers}"
            time.sleep(0.05)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        images = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.strip("/").partition(".")[0])
                images._pass(number)
                content = images.contents[number]
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except ConnectionError:
                    pass  # the reader was killed

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _pass(self, number: int) -> None:
        if number >= self._gated and not self.gate.is_set():
            with self._lock:
                self._waiting += 1
            self.gate.wait(240)
            with self._lock:
                self._waiting -= 1

    @contextmanager
    def serving(self) -> Iterator[GatedImages]:
        """Serve in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.gate.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _picture(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    return stream.getvalue()
