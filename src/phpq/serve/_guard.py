"""The outermost layer of the server: every request passes it, and every answer.

It gives a request its number, checks host, origin, rate and body, counts it, adds the security
headers, and turns what nobody caught into a 500 without a trace of the inside.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from cachetools import LRUCache
from fastapi import Depends, Header
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phpq.errors import PhpqError
from phpq.serve._refusals import Refused, busy, error_body, kind_of, no_access, status_of, too_large
from phpq.serve.settings import FORM_BYTES, ServerSettings, is_loopback

if TYPE_CHECKING:
    from phpq.serve.services import Metrics

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"geolocation=(), microphone=(), payment=(), usb=()"),
)
BATCH_IMAGES = 4  # several photos together may be as large as this many of the largest images
_LOG = logging.getLogger("phpq.serve")
_ALWAYS = frozenset({"/health", "/ready", "/metrics"})  # answered however busy the server is
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_BODIES = 128  # that arrive at once
_MOST_CLIENTS = 10_000  # remembered at once; the one not seen for longest is forgotten


class Guard:
    """ASGI middleware; `full` tells whether an upload would be refused once it was read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        metrics: Metrics,
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._full = full
        self._rates = RateLimit(settings.rate, settings.burst)
        self._bodies = Bodies(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = number
        start, status = time.perf_counter(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                extra = [pair for pair in HEADERS if pair[0] not in present]
                extra.append((b"x-request-id", number.encode()))
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        self._metrics.began()
        try:
            await self._checked(scope, receive, send_guarded)
        except Exception as error:
            if not isinstance(error, PhpqError):
                _LOG.exception("request %s failed", number)
            if status:
                raise  # half an answer is out: only the end of the connection can tell
            await refuse(error, number)(scope, receive, send_guarded)
        finally:
            seconds = time.perf_counter() - start
            # By the pattern that the request matched: addresses are too many to be counted by.
            route = str(getattr(scope.get("route"), "path", "") or "none")
            self._metrics.ended(scope["method"], route, status or 499, seconds)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        check_host(host, self._settings)
        check_origin(scope["method"], headers.get("origin", ""), host, self._settings)
        if scope["path"] not in _ALWAYS:
            client = scope.get("client")
            self._rates.take(client[0] if client else "")
        with self._bodies.watched(scope, receive) as bounded:
            if headers.get("content-type", "").startswith("multipart/") and self._full():
                # Taken off the wire, so that the client hears the answer, but not taken apart:
                # that is most of the work of a refusal.
                while (await bounded()).get("more_body", False):
                    pass
                raise busy("too many uploads wait")
            await self._app(scope, bounded, send)


def refuse(error: Exception, number: str, *, text: str | None = None) -> JSONResponse:
    """Turn an error into the answer to request `number`; `text` takes the place of its own."""
    if not isinstance(error, PhpqError):
        text = f"The server made a mistake. Its log names it by the number {number}."
        return JSONResponse(error_body("ServerError", text, number), 500)
    headers = error.headers if isinstance(error, Refused) else {}
    content = error_body(kind_of(error), str(error) if text is None else text, number)
    return JSONResponse(content, status_of(error), headers)


class Bodies:
    """Watches over the bodies of all requests: bounded in bytes, in time and in number."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._arriving = 0

    def largest(self, path: str) -> int:
        """Return the bytes that a body for this path may have."""
        images = BATCH_IMAGES if path.endswith(("/batch", "/search", "/explain")) else 1
        return images * self._settings.max_upload_bytes + FORM_BYTES

    @contextmanager
    def watched(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """Yield a `receive` that refuses what is too large or too slow."""
        if scope["method"] in _READS:
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
                late = f"The upload took more than {settings.body_seconds:g} seconds to arrive."
                raise Refused(408, "BusyError", late) from error
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > limit:
                raise too_large(f"more than {limit:,} bytes", settings.max_upload_bytes)
            return message

        return bounded


class RateLimit:
    """A bucket of tokens for each client: `burst` at once, `rate` a second; 0 is no limit."""

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # Tokens, and since when.
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(_MOST_CLIENTS)

    def take(self, client: str) -> None:
        """Count one request; a client that made too many is refused with the seconds to wait."""
        if not self._rate:
            return
        now = self._clock()
        tokens, since = self._buckets.get(client, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        if not allowed:
            wait = max(1, math.ceil((1 - tokens) / self._rate))
            raise Refused(
                429,
                "BusyError",
                f"More than {self._rate:g} requests per second from one client. Try again in "
                f"{wait} s, or start the server with a larger --rate.",
                retry_after=wait,
            )


def check_host(host: str, settings: ServerSettings) -> None:
    """Refuse a request that came to another name than this server has.

    A web page may point its own name at 127.0.0.1 and read what is served there as its own
    (DNS rebinding); such a request still carries the name of that page.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        name = ""
    if settings.allowed_hosts:
        allowed = name in {known.lower() for known in settings.allowed_hosts}
    else:
        allowed = not settings.on_loopback or is_loopback(name)
    if not allowed:
        raise no_access(
            f"The host {host!r} is not served here. Use http://127.0.0.1:{settings.port}, or start "
            "the server with --allow-host NAME."
        )


def check_origin(method: str, origin: str, host: str, settings: ServerSettings) -> None:
    """Refuse what the page of another site sends through somebody's browser.

    Reading needs no check: browsers keep the answer from other sites. Where no browser sent the
    request, `origin` is empty.
    """
    named = origin in settings.cors_origins or "*" in settings.cors_origins
    if method in _READS or not origin or named:
        return
    if origin == "null" or urlsplit(origin).netloc.lower() != host.lower():
        raise no_access(
            f"A page of {origin!r} may not send requests to this server. Start it with "
            f"--allow-origin ORIGIN to let it."
        )


def needs_token(settings: ServerSettings) -> Any:
    """Return a dependency for routes that only who has the token may use."""

    def check(authorization: Annotated[str, Header(description="Bearer TOKEN")] = "") -> None:
        check_token(authorization, settings)

    return Depends(check)


def check_token(header: str, settings: ServerSettings) -> None:
    """Refuse who may not write."""
    if not settings.writable or settings.token is None:
        raise no_access(
            "This server is read-only. Start it with --writable and a token to add and delete."
        )
    scheme, _, given = header.partition(" ")
    # In constant time: how long it takes must not tell how much of a guess was right.
    same = hmac.compare_digest(given.strip().encode("utf-8"), settings.token.encode())
    if scheme.lower() != "bearer" or not same:
        raise no_access(
            "Adding and deleting need the token of the server: send the header "
            "'Authorization: Bearer TOKEN'.",
            status=401,
        )
