"""What the workers of a grid do in tests: cells that learn nothing and obey files in the folder.

A module of its own: worker processes import it by name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

from phpq.reproduce.grid import Cell
from phpq.reproduce.runner import DIED
from phpq.reproduce.work import WorkerContext


def load_nothing(device: str, threads: int) -> None:
    """Stand for loading torch."""


def attempt(cell: Cell, context: WorkerContext) -> dict[str, Any]:
    """Outcome at once; write down which cell it was, in which process, and what it was told."""
    folder = context.store.folder
    with (folder / "told").open("a", encoding="utf-8") as told:
        told.write(f"{cell.key} {os.getpid()} {context.compiled} {os.environ['OMP_NUM_THREADS']}\n")
    sys.stdout.write("a library prints this\n")
    sys.stdout.flush()
    # Named once for each time that the process dies of the cell.
    deadly = folder / "deadly"
    names = deadly.read_text("utf-8").split() if deadly.exists() else []
    named = [name for name in names if cell.key.startswith(name)]
    if named:
        names.remove(named[0])
        deadly.write_text(" ".join(names), "utf-8")
        if multiprocessing.parent_process() is None:  # not in a worker
            return {"error": DIED, "log": DIED, "retry": True}
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder / f"hold-{cell.config.method.name}").exists():
        time.sleep(0.01)
    if cell.config.method.name == "dsh":
        return {"error": "ConfigError: no", "log": "Traceback: no", "retry": False}
    record = {"format": 1, "key": cell.key, "status": "done", "config": {}}
    return {"record": record | {"map": 50.0, "seconds": {"all": 2.0}}}
