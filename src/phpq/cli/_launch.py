"""Whether a launcher such as torchrun started several processes of a command, and how they end.

Only one of them reports to the user: the first of the group, or the first that fails.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

import typer

from phpq.cli._console import print_error, report_error

if TYPE_CHECKING:
    from phpq.training.distributed import Group

# All of these are set by torchrun; some alone are set by other programs, and mean nothing here.
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# What the command line itself refuses: unknown options, values of the wrong kind.
MISUSE = cast(type[Exception], typer.BadParameter.__base__)
RANK0_GRACE_S = 3.0  # for the first process to report before a launcher ends all


def rank0_reports() -> bool:
    """Tell whether a refused command line is for the first process to report; waits until it has.

    A command line is read before processes can meet, but all of them read the same one.
    """
    if not all(os.environ.get(name) for name in NAMES) or os.environ["RANK"] == "0":
        return False
    time.sleep(RANK0_GRACE_S)  # a launcher ends all once one has ended
    return True


def find_group() -> Group | None:
    """Return what the launcher says of this process; None if it was started by itself."""
    if not all(name in os.environ for name in NAMES):
        return None
    from phpq.errors import ConfigError
    from phpq.training.distributed import Group

    numbers = {name: os.environ[name] for name in NAMES[:4]}
    if not all(value.isdigit() for value in numbers.values()):
        raise ConfigError(
            f"{numbers} in the environment do not say which process this is. They are set by "
            "torchrun: start it by that, or without any of them."
        )
    return Group(*map(int, numbers.values()))


@contextmanager
def joined(device: str) -> Iterator[Group | None]:
    """Join the other processes for as long as the context is open; yields None for a single one."""
    group = find_group()
    if group is None or group.size == 1:
        yield None
        return
    group.meet()
    try:
        group.join(device)
        yield group
    except BaseException as error:  # all ways to end, Ctrl-C too
        _end(group, error)
    group.close()


def _end(group: Group, error: BaseException) -> NoReturn:
    """End this process; the first that failed writes what `phpq` writes in a single one."""
    from phpq.errors import PhpqError
    from phpq.training.distributed import PeerError

    code, report = 1, partial(traceback.print_exception, error)
    if isinstance(error, PhpqError):
        code, report = 2, partial(report_error, error)
    elif isinstance(error, KeyboardInterrupt):
        code, report = 130, partial(print_error, "interrupted.", str(error))
    group.report_once(None if isinstance(error, PeerError) else report)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: threads of the group still wait for the others, and the interpreter would abort.
    os._exit(code)
