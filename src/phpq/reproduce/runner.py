"""Runs the cells of a plan in several worker processes, and continues where it stopped.

Only this process writes records. A cell that fails is recorded, and the others go on. A worker that
dies is replaced, and its cell is run once more.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from phpq.config import RECIPES
from phpq.files import write_text
from phpq.recipes import remaining_config
from phpq.reproduce.grid import SHARED, Cell, GridPlan
from phpq.reproduce.store import FAILED, Record, Store, record_head
from phpq.reproduce.work import WorkerContext, decode_once, run_cell

Say = Callable[[str], None]
Outcome = dict[str, Any]  # of a cell: {"record": ...}, or {"error", "log", "retry"}
NO_FAISS = "faiss is not installed here, and pq and opq are fitted with it"
DIED = (
    "the worker process ended without an outcome: it was killed, or the machine ran out of memory"
)
# Training images of a grid from which on compiling its backbones saves time.
IMAGES_TO_COMPILE = 1_500_000
# Per cent of a GPU's multiprocessors under MPS, summed over the processes; docs/results/grid.md
MPS_SHARE, MPS_SUM = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 240


@dataclass(slots=True)
class GridResult:
    """The result of a plan."""

    plan: GridPlan
    folder: Path
    records: dict[str, Record]  # of cells that were finished, now or before
    reused: list[str]  # keys that were finished before
    ran: list[str] = field(default_factory=list)  # keys that were run now
    failed: dict[str, str] = field(default_factory=dict)  # key -> error
    left: dict[str, str] = field(default_factory=dict)  # key -> why it cannot be run here
    seconds: float = 0.0  # from start to end
    cell_seconds: float = 0.0  # summed over the cells that were run now
    tables: dict[str, Record] = field(default_factory=dict)  # as their JSON files hold them
    pages: tuple[Path, ...] = ()  # files for people

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plan = self.plan
        counts = {name: len(getattr(self, name)) for name in ("reused", "ran", "failed", "left")}
        return {
            "dataset": plan.subject.facts(),
            **{name: list(getattr(plan, name)) for name in ("targets", "bits", "seeds")},
            "folder": str(self.folder),
            "cells": {"planned": len(plan.cells), **counts, "failed": self.failed},
            "seconds": round(self.seconds, 1),
            "cell_seconds": round(self.cell_seconds, 1),
            "tables": self.tables,
            "pages": [str(page) for page in self.pages],
        }


def collect(plan: GridPlan, store: Store, *, with_arrays: bool) -> GridResult:
    """Read finished cells; tables need records only, other cells also the arrays."""
    records = store.finished(plan.cells, plan.subject.weights, with_arrays=with_arrays)
    return GridResult(plan, store.folder, records, reused=list(records))


def run_plan(plan: GridPlan, context: WorkerContext, *, processes: int, say: Say) -> GridResult:
    """Run every cell that is not finished, `processes` at once (0: in this process)."""
    started = time.perf_counter()
    result = collect(plan, context.store, with_arrays=True)
    waiting = [cell for cell in plan.cells if cell.key not in result.records]
    if find_spec("faiss") is None:
        fitted = [c.key for c in waiting if "faiss" in RECIPES[c.config.method.name].needs]
        result.left = dict.fromkeys(fitted, NO_FAISS)
    # Cells that others start from are run only if one of these is missing.
    wanted = {cell.key for cell in waiting if cell.kind not in SHARED}
    wanted |= {cell.start for cell in waiting}
    waiting = [c for c in waiting if c.key in wanted and c.key not in result.left]
    left = f", {len(result.left)} left for later ({NO_FAISS})" if result.left else ""
    say(f"{len(plan.cells)} cells: {len(result.reused)} are there, {len(waiting)} to run{left}")
    if waiting:
        size = min(processes, len(waiting))
        with _workers(size, context.device) as start:
            workers = [start() for _ in range(max(1, size))]
            Run(waiting, context, result, say).run_cells(workers, start)
    result.seconds = time.perf_counter() - started
    return result


class Run:
    """One pass over the cells that are not finished."""

    def __init__(
        self, cells: Sequence[Cell], context: WorkerContext, result: GridResult, say: Say
    ) -> None:
        """Decide whether compiling is worth it for these cells."""
        self.waiting, self.total = list(cells), len(cells)
        self.context, self.result, self.say = context, result, say
        self.retried: set[str] = set()
        self.first: dict[str, str] = {}  # method -> key of the cell that compiles for the others
        compiler = os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))
        can_compile = context.device.startswith("cuda") and compiler and find_spec("triton")
        self.worth_compiling = (
            bool(can_compile) and sum(map(self._images, cells)) >= IMAGES_TO_COMPILE
        )

    def run_cells(self, idle: list[Executor], start: Callable[[], Executor]) -> None:
        """Run all cells on idle workers; `start` replaces one that died."""
        try:  # once, before cells read the cache; meanwhile workers load torch
            decode_once([cell for cell in self.waiting if cell.kind != "shallow"], self.context)
        except Exception as error:  # cells will fail too, each with its own traceback
            self.say(f"decoding failed: {type(error).__name__}: {error}")
        running: dict[Future[Outcome], tuple[Cell, Executor]] = {}
        while True:
            while idle and (cell := self._next()) is not None:
                worker, context = idle.pop(), replace(self.context, compiled=self.compiles(cell))
                try:
                    future = worker.submit(attempt, cell, context)
                except BrokenProcessPool:  # it died while idle
                    worker = start()
                    future = worker.submit(attempt, cell, context)
                running[future] = cell, worker
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, worker = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = {"error": DIED, "log": DIED, "retry": True}
                    worker = start()
                idle.append(worker)
                self._finish(cell, outcome)

    def compiles(self, cell: Cell) -> bool:
        """Tell whether a cell that starts now compiles its backbone, unless its config decides.

        With a GPU, a C compiler and enough images, the first cell of each method compiles, and so
        fills the compiler's cache on disk. Cells of that method that start before it has finished
        do not compile the same again; later ones compile from the cache. A retried cell does not
        compile.
        """
        if not self.worth_compiling or not self._images(cell) or cell.key in self.retried:
            return False
        first = self.first.setdefault(cell.config.method.name, cell.key)
        return first == cell.key or first in self.result.records

    def _images(self, cell: Cell) -> int:
        """Return the training images of a cell, times its epochs."""
        if cell.kind == "shallow" or cell.config.method.features == "imagenet":
            return 0
        return self.context.subject.gallery * remaining_config(cell.config).training.epochs

    def _next(self) -> Cell | None:
        """Take the first cell whose start is finished; give up those whose start failed."""
        for cell in list(self.waiting):
            if cell.start in self.result.failed:
                self.waiting.remove(cell)
                error = f"what it starts from failed: {self.result.failed[cell.start]}"
                self._finish(cell, {"error": error, "log": error})
        for cell in self.waiting:
            if not cell.start or cell.start in self.result.records:
                self.waiting.remove(cell)
                return cell
        return None

    def _finish(self, cell: Cell, outcome: Outcome) -> None:
        """Record the outcome of a cell, and report it."""
        result, context, store = self.result, self.context, self.context.store
        if outcome.get("retry") and cell.key not in self.retried:
            self.retried.add(cell.key)
            self.waiting.append(cell)
            self.say(f"{cell.label}: {outcome['error']}; it is tried once more")
            return
        number = len(result.ran) + len(result.failed) + 1
        if "error" in outcome:
            result.failed[cell.key] = outcome["error"]
            log = store.folder / "logs" / f"{cell.key}.log"
            write_text(log, outcome["log"])
            head = record_head(cell, FAILED, context.subject.weights)
            store.write_record(head | {"error": outcome["error"], "commit": context.commit})
            self.say(f"[{number}/{self.total}] {cell.label}: failed, {outcome['error']} ({log})")
            return
        record = outcome["record"]
        store.write_record(record)
        result.records[cell.key] = record
        result.ran.append(cell.key)
        seconds = record["seconds"]["all"]
        result.cell_seconds += seconds
        scores = f"MAP {record['map']:.2f}" if "map" in record else "learned"
        if "map_learned" in record:
            scores += f", {record['map_learned']:.2f} with learned codes"
        self.say(f"[{number}/{self.total}] {cell.label}: {scores} ({seconds:.1f} s)")


class _InProcess(Executor):
    """Runs submitted functions at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def _workers(size: int, device: str) -> Iterator[Callable[[], Executor]]:
    """Yield a function that starts a worker; all workers are stopped at the end.

    Each worker is a pool of one process: if that dies, only its own cell is lost.
    """
    if not size:
        yield _InProcess
        return
    threads = max(1, (os.cpu_count() or 1) // size)
    # Libraries read these when they are loaded, so that workers do not compete for cores.
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    if size > 1:
        limits[MPS_SHARE] = os.environ.get(MPS_SHARE, str(min(100, max(1, MPS_SUM // size))))
    spawn = multiprocessing.get_context("spawn")
    lifeline, held = spawn.Pipe(duplex=False)
    started: list[ProcessPoolExecutor] = []

    def start() -> Executor:
        pool = ProcessPoolExecutor(
            1, mp_context=spawn, initializer=begin_worker, initargs=(lifeline,)
        )
        started.append(pool)
        pool.submit(load_libraries, device, threads)
        return pool

    before = dict(os.environ)
    os.environ.update(limits)
    try:
        yield start
    finally:
        os.environ.clear()
        os.environ.update(before)
        held.close()
        for pool in started:
            pool.shutdown(cancel_futures=True)
        lifeline.close()


def begin_worker(lifeline: Connection) -> None:
    """Prepare a worker process; it exits when the parent closes the lifeline, or dies.

    Ctrl-C goes to all processes of a terminal: the parent alone handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # output of libraries must not mix with --json

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def load_libraries(device: str, threads: int) -> None:
    """Load torch and open the GPU, so that no cell is charged with these seconds."""
    import torch

    import phpq.training  # noqa: F401

    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.zeros(1, device=device)


def attempt(cell: Cell, context: WorkerContext) -> Outcome:
    """Run a cell, in a worker or in this process; a failure is an outcome too."""
    try:
        return {"record": run_cell(cell, context)}
    except Exception as error:  # a failing cell must not stop the others
        lacks_memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
        # A retried cell does not compile.
        uncompiled = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
        return {
            "error": f"{type(error).__name__}: {error}",
            "log": traceback.format_exc(),
            "retry": lacks_memory or uncompiled,
        }
    finally:  # free the memory for other cells on the same device
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
