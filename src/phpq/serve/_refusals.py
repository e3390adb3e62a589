"""Errors on the wire: an exception in, a status and {"error": {kind, message, request_id}} out.

Library errors keep their kind and text; what only a server can say has kinds of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phpq import errors
from phpq.errors import PhpqError

# The first that fits counts: the narrow ones come first.
_STATUS: dict[type[PhpqError], int] = {
    errors.UnknownNameError: 404,
    errors.BadImageError: 422,
    errors.ConfigError: 400,
    errors.DataError: 409,
    errors.FormatError: 503,  # the gallery on disk is damaged: no request can fix that
}


class Refused(PhpqError):
    """A request that is not served, with its status on the wire."""

    def __init__(
        self, status: int, kind: str, message: str, *, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status  # of HTTP
        self.kind = kind  # the class of the error, as a client names it
        self.retry_after = retry_after  # seconds; None if it is not worth trying again

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP asks to be said beside the status."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


CLOSING = "it is shutting down"  # what a server is busy with at its end


def busy(what: str) -> Refused:
    """Build the answer of a server that has as much to do as it can hold."""
    return Refused(
        503, "BusyError", f"The server is busy: {what}. Try again in a second.", retry_after=1
    )


def no_access(message: str, *, status: int = 403) -> Refused:
    """Build the answer to who may not ask this; 401 where a token would help."""
    return Refused(status, "AccessError", message)


def too_large(seen: str, limit: int) -> Refused:
    """Build the answer to a body that is too large; it has the kind of a bad image."""
    return Refused(
        413,
        "BadImageError",
        f"The upload has {seen}; at most {limit:,} bytes per image are allowed. Make the image "
        "smaller, or start the server with a larger --max-upload.",
    )


def status_of(error: PhpqError) -> int:
    """Return the HTTP status of a library error."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)


def kind_of(error: PhpqError) -> str:
    """Return the name that a client finds the exception by."""
    return error.kind if isinstance(error, Refused) else type(error).__name__


def error_body(kind: str, message: str, request_id: str) -> dict[str, Any]:
    """Return the body of every answer that is an error."""
    return {"error": {"kind": kind, "message": message, "request_id": request_id}}


def describe_invalid(problems: list[Mapping[str, Any]]) -> str:
    """Put what pydantic says of the first wrong field into one sentence."""
    if not problems:
        return "The request cannot be read."
    first = problems[0]
    path = [str(part) for part in first.get("loc", ())]
    name = ".".join(path[1:]) or "body"
    if first.get("type") == "missing":
        return f"{name} is missing. /docs says what a request holds."
    seen = first.get("input")
    shown = f"={seen!r:.80}" if isinstance(seen, str | int | float | bool) else ""
    more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
    return f"{name}{shown} is not allowed: {first.get('msg', 'it is not valid')}.{more}"
