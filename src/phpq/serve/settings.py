"""Every knob of the server: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

from phpq.errors import ConfigError

MAX_TOP_K = 500  # hits of one answer
MAX_OFFSET = 10_000  # hits that paging can skip
MAX_BATCH = 32  # queries of one batch search
MAX_ID = 1024  # characters of an id or a URI
MAX_WHERE = 1000  # characters of a filter
MAX_LABELS = 100  # labels of one filter
MAX_MAP = 20_000  # points of a map
SHORTEST_TOKEN = 16
FORM_BYTES = 64 * 1024  # of a body beside its images: fields, part headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a gallery is served.

    Attributes:
        host: The address to listen on; loopback unless told otherwise.
        port: The port, 0 for a free one.
        token: Whoever sends it may write; None if nobody may.
        writable: Whether adding and deleting is on; it needs a token.
        allowed_hosts: Host names that requests may come to. Empty: the names of loopback where
            the server listens on loopback, all names elsewhere.
        cors_origins: Web origins that may call from a browser; none by default.
        max_upload_bytes: Of one image.
        max_pixels: Of one image; more are refused from the header.
        decode_seconds: A decoder that takes longer is stopped.
        request_seconds: Waiting and work of one request; more is a 503.
        body_seconds: A request body that takes longer to arrive is refused.
        workers: Threads that search; 0 is one a core and one more.
        decoders: Processes that decode images.
        max_waiting: Requests that wait for a thread; more are a 503 at once.
        rate: Requests a second that one client may make in the long run; 0 is no limit.
        burst: Requests that a client may make at once.
        reload_seconds: How often to look for changes by other processes.
        cache_bytes: Memory for thumbnails.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    writable: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_upload_bytes: int = 20 * 1024 * 1024
    max_pixels: int = 50_000_000
    decode_seconds: float = 10.0
    request_seconds: float = 30.0
    body_seconds: float = 60.0
    workers: int = 0
    decoders: int = 2
    max_waiting: int = 64
    rate: float = 100.0
    burst: int = 400
    reload_seconds: float = 1.0
    cache_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        _check(self, "port", 0, 65535)
        _check(self, "max_upload_bytes", 1, 1 << 31)
        _check(self, "max_pixels", 1, 1 << 31)
        _check(self, "workers", 0, 1024)
        _check(self, "decoders", 1, 64)
        _check(self, "max_waiting", 0, 100_000)
        _check(self, "rate", 0, 1e9)
        _check(self, "burst", 1, 1e9)
        _check(self, "cache_bytes", 0, 1 << 40)
        for name in ("decode_seconds", "request_seconds", "body_seconds", "reload_seconds"):
            _check(self, name, 0.001, 86400)
        if self.writable and self.token is None:
            raise ConfigError(
                "writable=True needs a token: whoever may add or delete must be told from the "
                "rest. Set PHPQ_TOKEN, or give --token-file FILE."
            )
        if self.token is not None and not _good_token(self.token):
            raise ConfigError(
                f"The token has {len(self.token)} characters, or others than printable ASCII; "
                f"use at least {SHORTEST_TOKEN} without spaces. Make one with: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        if "*" in self.cors_origins and self.writable:
            raise ConfigError(
                "cors_origins=('*',) with writable=True would let every web page write that gets "
                "hold of the token. Name the origins, as in https://birds.example.org"
            )

    @property
    def threads(self) -> int:
        """Threads that search."""
        return self.workers or (os.cpu_count() or 1) + 1

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Say whether a name or an address means this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check(settings: ServerSettings, name: str, low: float, high: float) -> None:
    value = getattr(settings, name)
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {low:g} to {high:g}.")


def _good_token(token: str) -> bool:
    return len(token) >= SHORTEST_TOKEN and all(33 <= ord(letter) <= 126 for letter in token)
