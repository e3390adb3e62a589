"""Every knob of the server and of its shards: frozen dataclasses, checked when they are made."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

from phpq.cluster.connection import LOCAL, is_address
from phpq.errors import ConfigError

MAX_TOP_K = 500  # hits of one answer
MAX_OFFSET = 10_000  # hits that paging can skip
MAX_BATCH = 32  # queries of one batch search
MAX_PHOTOS = 8  # of one query
MAX_EXAMPLES = 32  # images that one query is to be like, or not
MAX_ID = 1024  # characters of an id or a URI
MAX_WHERE = 1000  # characters of a filter
MAX_LABELS = 100  # labels of one filter
MAX_MAP = 20_000  # points of a map
SHORTEST_TOKEN = 16
FORM_BYTES = 64 * 1024  # of a body beside its images: fields, part headers
MOST_SHARDS = 1024
MOST_REPLICAS = 64
_SECONDS = (0.001, 86400)
_BOUNDS = {
    "port": (0, 65535),
    "max_upload_bytes": (1, 1 << 31),
    "max_pixels": (1, 1 << 31),
    "workers": (0, 1024),
    "decoders": (1, 64),
    "max_waiting": (0, 100_000),
    "rate": (0, 1e9),
    "burst": (1, 1e9),
    "cache_bytes": (0, 1 << 40),
    "decode_seconds": _SECONDS,
    "request_seconds": _SECONDS,
    "body_seconds": _SECONDS,
    "reload_seconds": _SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a gallery is served."""

    host: str = "127.0.0.1"  # the address to listen on; loopback unless told otherwise
    port: int = 8000  # 0 for a free one
    token: str | None = field(default=None, repr=False)  # of those who may write; None: nobody may
    writable: bool = False  # whether adding and deleting is on; it needs a token
    # Host names that requests may come to. Empty: the names of loopback where the server listens
    # on loopback, all names elsewhere.
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()  # web origins that may call from a browser
    max_upload_bytes: int = 20 * 1024 * 1024  # of one image
    max_pixels: int = 50_000_000  # of one image; more are refused from the header
    decode_seconds: float = 10.0  # a decoder that takes longer is stopped
    request_seconds: float = 30.0  # waiting and work of one request; more is a 503
    body_seconds: float = 60.0  # a request body that takes longer to arrive is refused
    workers: int = 0  # threads that search; 0 is one per core and one more
    decoders: int = 2  # processes that decode images
    max_waiting: int = 64  # requests that wait for a thread; more are a 503 at once
    rate: float = 100.0  # requests per second of one client in the long run; 0 is no limit
    burst: int = 400  # requests that a client may make at once
    reload_seconds: float = 1.0  # between two looks for changes by other processes
    cache_bytes: int = 64 * 1024 * 1024  # memory for thumbnails

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            _check(self, name, low, high)
        if self.writable and self.token is None:
            raise ConfigError(
                "writable=True needs a token: whoever may add or delete must be told from the "
                "rest. Set PHPQ_TOKEN, or give --token-file FILE."
            )
        good = all(33 <= ord(letter) <= 126 for letter in self.token or "")
        if self.token is not None and not (good and len(self.token) >= SHORTEST_TOKEN):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a gallery is cut into shards on a Ray cluster; checked when it is made."""

    address: str = LOCAL  # of the cluster: "local", "auto" or HOST:PORT
    shards: int = 1
    replicas: int = 1  # processes that hold the same shard; one processor each
    retry_seconds: float = 10.0  # to go on asking a shard that fails; then it is a 503
    start_seconds: float = 1800.0  # for the shards to be there when the server starts
    load_seconds: float = 3600.0  # to load a new version; the old one is served meanwhile

    def __post_init__(self) -> None:
        if not is_address(self.address) or self.address.startswith("ray://"):
            raise ConfigError(
                f"--ray {self.address!r} cannot be used: sharded search takes local, auto or "
                "HOST:PORT, as a machine of the cluster. Start the server on one of its machines."
            )
        for name, most in (("shards", MOST_SHARDS), ("replicas", MOST_REPLICAS)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ConfigError(f"--{name} {value} is not allowed: it must be 1 to {most}.")
        for name in ("retry_seconds", "start_seconds", "load_seconds"):
            _check(self, name, 0.1, 86400)

    @property
    def processes(self) -> int:
        """Replicas of all shards."""
        return self.shards * self.replicas


def is_loopback(host: str) -> bool:
    """Say whether a name or an address means this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check(settings: object, name: str, low: float, high: float) -> None:
    value = getattr(settings, name)
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {low:g} to {high:g}.")
