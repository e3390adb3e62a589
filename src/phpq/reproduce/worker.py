"""A worker process: jobs as lines of JSON on stdin, one line of JSON an answer on stdout.

    python -m phpq.reproduce.worker

The first line is the `Workplace`. What libraries print goes to stderr, never between the answers.
At the end of stdin the worker stops: a killed parent leaves no orphans behind.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import Any, TextIO

from phpq.reproduce.grid import Cell, recorded_config
from phpq.reproduce.store import FAILED, FORMAT
from phpq.reproduce.work import compile_for, run_cell
from phpq.reproduce.workplace import Workplace, decode_once

NICENESS = 10


def main() -> None:
    """Serve the parent until it closes the pipe."""
    # Ctrl-C goes to all processes of a terminal; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


def serve(jobs: TextIO, answers: TextIO) -> None:
    """Do the jobs of a stream in turn.

    Args:
        jobs: The workplace with "threads" beside it, and whether this process only "helps" others,
            which then have precedence; then jobs as `do_job` takes them.
        answers: One line for each job.
    """
    first = jobs.readline()
    if not first:
        return
    setup = json.loads(first)
    place = Workplace.from_dict(setup["place"])
    if setup.get("helps") and hasattr(os, "nice"):
        os.nice(NICENESS)  # what it starts, as a compiler on every core, inherits it
    import phpq.training  # noqa: F401  here, or the first cell's seconds would count it

    limit_threads(setup["threads"])
    _wake(place.device)
    for line in jobs:
        answer = do_job(json.loads(line), place)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def do_job(job: dict[str, Any], place: Workplace) -> dict[str, Any]:
    """Do one job: {"decode": [cells]}, {"compile": cell} or {"cell": cell}; never raises for it.

    Args:
        job: May say for its cell whether it is "compiled", in place of the workplace.
        place: Data set, device and folder.

    Returns:
        {"record": ...}, or {"error": "...", "again": bool} for what went wrong.
    """
    try:
        if "decode" in job:
            decode_once([Cell.from_dict(cell) for cell in job["decode"]], place)
            return {"record": None}
        if "compile" in job:
            compile_for(Cell.from_dict(job["compile"]), place)
            return {"record": None}
        place = replace(place, compiled=job.get("compiled", place.compiled))
        return {"record": run_cell(Cell.from_dict(job["cell"]), place)}
    except Exception as error:  # one cell that fails must not take the others with it
        text = f"{type(error).__name__}: {error}"
        if "cell" in job:
            note_failure(Cell.from_dict(job["cell"]), place, text, traceback.format_exc())
        return {"error": text, "again": _out_of_memory(error)}
    finally:
        _tidy()


def note_failure(cell: Cell, place: Workplace, error: str, log: str) -> None:
    """Write down that a cell failed, and why.

    Args:
        cell: What was run.
        place: Where.
        error: One line.
        log: All of it.
    """
    place.store.write_log(cell.key, log)
    place.store.write_record(
        {
            "format": FORMAT,
            "key": cell.key,
            "status": FAILED,
            "kind": cell.kind,
            "method": cell.config.method.name,
            "bits": cell.bits,
            "seed": cell.seed,
            "error": error,
            "config": recorded_config(cell.config, place.weights),
            "commit": place.commit,
        }
    )


def limit_threads(threads: int) -> None:
    """Let torch use so many threads; 0 leaves it as it is."""
    if threads:
        import torch

        torch.set_num_threads(threads)


def _wake(device: str) -> None:
    """Let the driver set the process up on the GPU, which takes seconds, before a cell waits."""
    if device.startswith("cuda"):
        import torch

        with suppress(RuntimeError):  # the first cell will say what is wrong, in its own log
            torch.zeros(1, device=device)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def _tidy() -> None:
    """Give the memory of a finished cell back to the others on the same device."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
