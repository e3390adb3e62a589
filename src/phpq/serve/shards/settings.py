"""How a gallery is cut into shards: one frozen dataclass, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from phpq.cluster.connection import LOCAL, is_address
from phpq.errors import ConfigError

MOST_SHARDS = 1024
MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Shards on a Ray cluster.

    Attributes:
        address: Of the cluster: "local", "auto" or HOST:PORT.
        shards: Parts of the gallery.
        replicas: Processes that hold the same shard; one processor each.
        retry_seconds: How long a request goes on to ask a shard that fails; then it is a 503.
        start_seconds: For the shards to be there when the server starts.
        load_seconds: For the shards to load a new version; the old one is served meanwhile.
    """

    address: str = LOCAL
    shards: int = 1
    replicas: int = 1
    retry_seconds: float = 10.0
    start_seconds: float = 1800.0
    load_seconds: float = 3600.0

    def __post_init__(self) -> None:
        if not is_address(self.address) or self.address.startswith("ray://"):
            raise ConfigError(
                f"--ray {self.address!r} cannot be used: sharded search takes local, auto or "
                "HOST:PORT, as a machine of the cluster. Start the server on one of its machines."
            )
        _check("--shards", self.shards, MOST_SHARDS)
        _check("--replicas", self.replicas, MOST_REPLICAS)
        for name in ("retry_seconds", "start_seconds", "load_seconds"):
            value = getattr(self, name)
            if not 0.1 <= value <= 86400:
                raise ConfigError(f"{name}={value!r} is not allowed: it must be 0.1 to 86400.")

    @property
    def processes(self) -> int:
        """Replicas of all shards."""
        return self.shards * self.replicas


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ConfigError(f"{name} {value} is not allowed: it must be 1 to {most}.")
