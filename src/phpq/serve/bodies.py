"""Request bodies as they arrive: bounded in bytes, in time and in number."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive, Scope

from phpq.serve.refusals import Refused, busy, too_large
from phpq.serve.settings import FORM_BYTES, ServerSettings

BATCH_IMAGES = 4  # a batch may be as large as this many of the largest images
_MOST_BODIES = 128  # that arrive at once


class Bodies:
    """Watches over the bodies of all requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._arriving = 0

    def largest(self, path: str) -> int:
        """Return the bytes that a body for this path may have."""
        images = BATCH_IMAGES if path.endswith("/batch") else 1
        return images * self._settings.max_upload_bytes + FORM_BYTES

    @contextmanager
    def watched(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """Yield a `receive` that refuses what is too large or too slow."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            yield receive
            return
        limit = self.largest(scope["path"])
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(f"{int(declared):,} bytes", self._settings.max_upload_bytes)
        if self._arriving >= _MOST_BODIES:
            raise busy(f"{self._arriving} uploads arrive at once")
        self._arriving += 1
        try:
            yield self._bounded(receive, limit)
        finally:
            self._arriving -= 1

    def _bounded(self, receive: Receive, limit: int) -> Receive:
        settings = self._settings
        end = time.monotonic() + settings.body_seconds
        seen, whole = 0, False

        async def bounded() -> Message:
            nonlocal seen, whole
            if whole:  # what comes now is the end of the connection, whenever that is
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(end - time.monotonic(), 0.001))
            except TimeoutError as error:
                raise Refused(
                    408,
                    "BusyError",
                    f"The upload took more than {settings.body_seconds:g} seconds to arrive.",
                ) from error
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > limit:
                raise too_large(f"more than {limit:,} bytes", settings.max_upload_bytes)
            return message

        return bounded
