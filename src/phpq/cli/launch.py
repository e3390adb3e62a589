"""Whether a launcher such as torchrun started several processes of a command, and how they end.

Only one of them speaks: the first of the group, or the first that fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from phpq.cli.output import print_error

if TYPE_CHECKING:
    from phpq.training.distributed import Group, Launch

# All of these are set by torchrun; some alone are set by other programs, and mean nothing here.
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def find_launch() -> Launch | None:
    """Return what the launcher says of this process; None if it was started by itself."""
    if not all(name in os.environ for name in NAMES):
        return None
    from phpq.errors import ConfigError
    from phpq.training.distributed import Launch

    numbers = {name: os.environ[name] for name in NAMES[:4]}
    if not all(value.isdigit() for value in numbers.values()):
        raise ConfigError(
            f"{numbers} in the environment do not say which process this is. They are set by "
            "torchrun: start it by that, or without any of them."
        )
    rank, size, local_rank, local_size = map(int, numbers.values())
    return Launch(rank, size, local_rank, local_size)


@contextmanager
def joined(device: str) -> Iterator[Group | None]:
    """Join the other processes for as long as the context is open; yields None for a single one.

    Args:
        device: As the user named it.
    """
    launch = find_launch()
    if launch is None or launch.size == 1:
        yield None
        return
    from phpq.training.distributed import connect

    group = connect(launch, device=device)
    try:
        yield group
    except BaseException as error:
        _end(group, error)
        raise
    group.close()


def _end(group: Group, error: BaseException) -> None:
    """Let one process say why all end: the first that failed."""
    from phpq.errors import PhpqError
    from phpq.training.distributed import PeerError

    mistake = isinstance(error, PhpqError)
    code = 2 if mistake else 130 if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(error, PeerError) or not group.fails_first():
        group.await_last_words()
        raise typer.Exit(code) from error
    if mistake:
        print_error("error:", str(error))
        group.has_said_why()
        raise typer.Exit(code) from error
