"""A Ray address in, a connection out: to a cluster that runs, or to one started for the purpose.

Nothing here imports Ray before it is asked for: phpq works without it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phpq.errors import ConfigError, missing_extra

LOCAL = "local"  # a cluster on this machine, for the length of the command
NAMESPACE = "phpq"
_CONNECT_SECONDS = 10.0
_ADDRESS = re.compile(r"(auto|local|ray://\S+|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+)")


def is_address(text: str) -> bool:
    """Return whether a text names a Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


def import_ray() -> Any:
    """Return the module `ray`; a `MissingExtraError` says how to install it."""
    # Read when Ray is imported. Nothing is reported to anyone; and workers use the environment that
    # this process runs in, where Ray would otherwise pack the project and build another for each.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        advice = "Without --ray everything runs in this process."
        raise missing_extra(ImportError(name="ray"), "--ray", advice) from error
    return ray


def import_serve() -> Any:
    """Return the module `ray.serve`, as `import_ray`, without its warnings about itself."""
    import_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from ray import serve
    return serve


@contextmanager
def connected(address: str = LOCAL, **local: Any) -> Iterator[Any]:
    """Connect to a Ray cluster, yield the module `ray`, and leave the cluster at the end.

    Args:
        address: "local" starts a cluster on this machine and stops it at the end; "auto" takes the
            one that runs here; HOST:PORT or ray://HOST:PORT one elsewhere. A connection that the
            process has already is used, and kept.
        local: Options of `ray.init` for a cluster that is started here, such as num_cpus.

    Raises:
        ConfigError: If there is no cluster at the address.
        MissingExtraError: If Ray is not installed.
    """
    if not is_address(address):
        raise ConfigError(
            f"{address!r} is not the address of a Ray cluster. Use local, auto, HOST:PORT or "
            "ray://HOST:PORT."
        )
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        _check_there(address)
        with warnings.catch_warnings():
            # What Ray starts becomes another program at once: Lance has nothing to fear from it.
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            ray.init(
                address=address,
                namespace=NAMESPACE,
                include_dashboard=False if address == LOCAL else None,
                logging_level=logging.ERROR,
                log_to_driver=False,
                **(local if address == LOCAL else {}),
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"There is no Ray cluster to be reached at {address!r}: {first_line(error)} Start one "
            "with: ray start --head (and ray start --address HOST:6379 on the other machines), or "
            "leave out the address to use this machine alone."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_there(address: str) -> None:
    """Raise an OSError if nobody listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, with a full stop: Ray's errors are long."""
    text = str(error).strip().splitlines()
    return f"{text[0].rstrip('.')}." if text else f"{type(error).__name__}."
