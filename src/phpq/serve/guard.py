"""The outermost layer of the server: every request passes it, and every answer.

It gives a request its number, checks host, origin, rate and body, counts it, adds the security
headers, and turns what nobody caught into a 500 without a trace of the inside.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phpq.errors import PhpqError
from phpq.serve.bodies import Bodies
from phpq.serve.limits import RateLimit
from phpq.serve.metrics import Metrics
from phpq.serve.refusals import Refused, busy, error_body, kind_of, status_of
from phpq.serve.security import HEADERS, check_host, check_origin
from phpq.serve.settings import ServerSettings

_LOG = logging.getLogger("phpq.serve")
_ALWAYS = frozenset({"/health", "/ready", "/metrics"})  # answered however busy the server is


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
            known = isinstance(error, PhpqError)
            if not known:
                _LOG.exception("request %s failed", number)
            if status:
                raise  # half an answer is out: only the end of the connection can tell
            await self._refuse(error, number)(scope, receive, send_guarded)
        finally:
            seconds = time.perf_counter() - start
            self._metrics.ended(scope["method"], _route(scope), status or 499, seconds)

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

    def _refuse(self, error: Exception, number: str) -> JSONResponse:
        if not isinstance(error, PhpqError):
            text = f"The server made a mistake. Its log names it by the number {number}."
            return JSONResponse(error_body("ServerError", text, number), 500)
        headers = error.headers if isinstance(error, Refused) else {}
        content = error_body(kind_of(error), str(error), number)
        return JSONResponse(content, status_of(error), headers)


def _route(scope: Scope) -> str:
    """Return the pattern that a request matched: addresses are too many to be counted by."""
    return str(getattr(scope.get("route"), "path", "") or "none")
