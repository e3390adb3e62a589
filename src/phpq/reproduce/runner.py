"""Runs the cells of a plan, several at once in processes, and continues where it stopped.

This process alone writes records. A cell that fails is noted and the others go on. A process that
dies is replaced, and its cell tried once more.
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
from phpq.reproduce.work import Workplace, decode_once, run_cell

Say = Callable[[str], None]
Answer = dict[str, Any]  # {"record": ...}, or {"error": "...", "log": "...", "again": bool}
NO_FAISS = "faiss is not installed here, and pq and opq are fitted with it"
DIED = "the worker process ended without an answer: it was killed, or the machine ran out of memory"
# Images that a grid must learn from until compiling its backbones wins back its time.
IMAGES_TO_COMPILE = 1_500_000
# Of a GPU's multiprocessors under MPS, in per cent, summed over the processes; docs/results/grid.md
MPS_SHARE, MPS_SUM = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 240


@dataclass(slots=True)
class GridResult:
    """What became of a plan."""

    plan: GridPlan
    folder: Path
    records: dict[str, Record]  # of cells that were finished, now or before
    reused: list[str]  # keys that were finished before
    ran: list[str] = field(default_factory=list)  # keys that were run now
    failed: dict[str, str] = field(default_factory=dict)  # key -> error
    left: dict[str, str] = field(default_factory=dict)  # key -> why it could not be run here
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
    """Look up what is there; tables need records alone, other cells the arrays beside them."""
    records = store.finished(plan.cells, plan.subject.weights, with_arrays=with_arrays)
    return GridResult(plan, store.folder, records, reused=list(records))


def run_plan(plan: GridPlan, place: Workplace, *, processes: int, say: Say) -> GridResult:
    """Run every cell that is not finished, `processes` at once (0: in this process)."""
    begun = time.perf_counter()
    result = collect(plan, place.store, with_arrays=True)
    waiting = [cell for cell in plan.cells if cell.key not in result.records]
    if find_spec("faiss") is None:
        fitted = [c.key for c in waiting if "faiss" in RECIPES[c.config.method.name].needs]
        result.left = dict.fromkeys(fitted, NO_FAISS)
    # What cells start from is made for those that are to be run, here or elsewhere, only.
    wanted = {cell.key for cell in waiting if cell.kind not in SHARED}
    wanted |= {cell.features for cell in waiting}
    waiting = [c for c in waiting if c.key in wanted and c.key not in result.left]
    left = f", {len(result.left)} left for later ({NO_FAISS})" if result.left else ""
    say(f"{len(plan.cells)} cells: {len(result.reused)} are there, {len(waiting)} to run{left}")
    if waiting:
        size = min(processes, len(waiting))
        with _workers(size, place.device) as start:
            workers = [start() for _ in range(max(1, size))]
            Run(waiting, place, result, say).go(workers, start)
    result.seconds = time.perf_counter() - begun
    return result


class Run:
    """One pass over the cells that wait."""

    def __init__(
        self, cells: Sequence[Cell], place: Workplace, result: GridResult, say: Say
    ) -> None:
        """Look over the cells that are to be run."""
        self.waiting, self.total = list(cells), len(cells)
        self.place, self.result, self.say = place, result, say
        self.tried: set[str] = set()
        self.first: dict[str, str] = {}  # method -> key of the cell that compiles for the others
        compiler = os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))
        can_compile = place.device.startswith("cuda") and compiler and find_spec("triton")
        self.pays = bool(can_compile) and sum(map(self._images, cells)) >= IMAGES_TO_COMPILE

    def go(self, idle: list[Executor], start: Callable[[], Executor]) -> None:
        """Run all cells on idle workers; `start` replaces one that died."""
        try:  # once, before the cells read them; meanwhile workers load torch
            decode_once([cell for cell in self.waiting if cell.kind != "shallow"], self.place)
        except Exception as error:  # the cells will fail alike, each with its own traceback
            self.say(f"decoding failed: {type(error).__name__}: {error}")
        running: dict[Future[Answer], tuple[Cell, Executor]] = {}
        while True:
            while idle and (cell := self._next()) is not None:
                worker, place = idle.pop(), replace(self.place, compiled=self.compiles(cell))
                try:
                    future = worker.submit(attempt, cell, place)
                except BrokenProcessPool:  # it died while it had nothing to do
                    worker = start()
                    future = worker.submit(attempt, cell, place)
                running[future] = cell, worker
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, worker = running.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    answer = {"error": DIED, "log": DIED, "again": True}
                    worker = start()
                idle.append(worker)
                self._ended(cell, answer)

    def compiles(self, cell: Cell) -> bool:
        """Tell whether a cell that starts now compiles its backbone if it leaves that open.

        Where a GPU and a C compiler are, and the grid learns from enough images, the first cell of
        each method compiles and so fills the compiler's cache on disk. Cells of that method that
        start before it has finished do without, rather than compile the same again; later ones
        compile from the cache. A second try does without too.
        """
        if not self.pays or not self._images(cell) or cell.key in self.tried:
            return False
        first = self.first.setdefault(cell.config.method.name, cell.key)
        return first == cell.key or first in self.result.records

    def _images(self, cell: Cell) -> int:
        """Count the images that a cell learns from, each as often as it is seen."""
        if cell.kind == "shallow" or cell.config.method.features == "imagenet":
            return 0
        return self.place.subject.gallery * remaining_config(cell.config).training.epochs

    def _next(self) -> Cell | None:
        """Take the first cell whose start is there; give up those whose start failed."""
        for cell in list(self.waiting):
            if cell.features in self.result.failed:
                self.waiting.remove(cell)
                error = f"what it starts from failed: {self.result.failed[cell.features]}"
                self._ended(cell, {"error": error, "log": error})
        for cell in self.waiting:
            if not cell.features or cell.features in self.result.records:
                self.waiting.remove(cell)
                return cell
        return None

    def _ended(self, cell: Cell, answer: Answer) -> None:
        """Write down what became of a cell, and say it."""
        result, place, store = self.result, self.place, self.place.store
        if answer.get("again") and cell.key not in self.tried:
            self.tried.add(cell.key)
            self.waiting.append(cell)
            self.say(f"{cell.label}: {answer['error']}; it is tried once more")
            return
        number = len(result.ran) + len(result.failed) + 1
        if "error" in answer:
            result.failed[cell.key] = answer["error"]
            log = store.folder / "logs" / f"{cell.key}.log"
            write_text(log, answer["log"])
            head = record_head(cell, FAILED, place.subject.weights)
            store.write_record(head | {"error": answer["error"], "commit": place.commit})
            self.say(f"[{number}/{self.total}] {cell.label}: failed, {answer['error']} ({log})")
            return
        record = answer["record"]
        store.write_record(record)
        result.records[cell.key] = record
        result.ran.append(cell.key)
        seconds = record["seconds"]["all"]
        result.cell_seconds += seconds
        scores = f"MAP {record['map']:.2f}" if "map" in record else "learned"
        if "map_learned" in record:
            scores += f", {record['map_learned']:.2f} with learned codes"
        self.say(f"[{number}/{self.total}] {cell.label}: {scores} ({seconds:.1f} s)")


class _Here(Executor):
    """Runs what is submitted in this process, before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def _workers(size: int, device: str) -> Iterator[Callable[[], Executor]]:
    """Yield what starts a worker; at the end all of them end, whatever they are doing.

    Each worker is a pool of one process: if that dies, only its own cell is lost.
    """
    if not size:
        yield _Here
        return
    threads = max(1, (os.cpu_count() or 1) // size)
    # Libraries read these when they are loaded: workers must not compete for cores.
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    if size > 1:
        limits[MPS_SHARE] = os.environ.get(MPS_SHARE, str(min(100, max(1, MPS_SUM // size))))
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    started: list[ProcessPoolExecutor] = []

    def start() -> Executor:
        pool = ProcessPoolExecutor(
            1, mp_context=context, initializer=begin_worker, initargs=(lifeline,)
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
    """Prepare a worker process; it ends when the other end of the lifeline closes.

    That is when the parent is done with it, or has ended in whatever way.
    """
    # Ctrl-C goes to all processes of a terminal; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what libraries print must not stand between the lines of --json

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def load_libraries(device: str, threads: int) -> None:
    """Load torch and open the GPU, which takes seconds that are no cell's own."""
    import torch

    import phpq.training  # noqa: F401

    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.zeros(1, device=device)


def attempt(cell: Cell, place: Workplace) -> Answer:
    """Run a cell, in a worker or here; what goes wrong is an answer too."""
    try:
        return {"record": run_cell(cell, place)}
    except Exception as error:  # one cell that fails must not take the others with it
        lacks_memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
        # Tried again, a cell does without the compiler.
        uncompiled = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
        return {
            "error": f"{type(error).__name__}: {error}",
            "log": traceback.format_exc(),
            "again": lacks_memory or uncompiled,
        }
    finally:  # give the memory of a finished cell back to the others on the same device
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
