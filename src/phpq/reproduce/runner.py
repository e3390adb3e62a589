"""Runs the cells of a plan, several at once in processes, and continues where it stopped.

Each worker is a process of its own that takes one cell after the other. A cell that fails is noted
and the others go on; a worker that dies is replaced and its cell tried once more.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from phpq.reproduce.compiling import Compiling
from phpq.reproduce.grid import Cell, Plan
from phpq.reproduce.sharing import gpu_share
from phpq.reproduce.worker import do_job, note_failure
from phpq.reproduce.workplace import Workplace

Say = Callable[[str], None]
WORKER = (sys.executable, "-m", "phpq.reproduce.worker")
SHARED = ("backbone", "features")
FITTED_BY_FAISS = ("pq", "itq", "opq")
NO_FAISS = f"faiss is not installed here, and {', '.join(FITTED_BY_FAISS)} are fitted with it"


@dataclass(slots=True)
class GridResult:
    """What became of the cells of a plan.

    Attributes:
        records: Of the finished cells, by key; those of earlier commands too.
        reused: Keys that were finished before.
        ran: Keys that were run now.
        failed: Key -> error.
        left: Key -> why it could not be run here.
        seconds: From start to end.
        cell_seconds: Sum over the cells that were run now.
    """

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cell_seconds: float = 0.0


def collect(plan: Plan, place: Workplace, *, with_arrays: bool = False) -> GridResult:
    """Look up what is there, and run nothing.

    Args:
        plan: What is asked for.
        place: Where.
        with_arrays: Count a cell only if what it stored beside its figures is there too. Tables
            need the figures alone.
    """
    result = GridResult()
    for cell in plan.cells:
        record = place.store.finished(cell, plan.subject.weights, with_arrays=with_arrays)
        if record is not None:
            result.records[cell.key] = record
            result.reused.append(cell.key)
    return result


def run_plan(plan: Plan, place: Workplace, *, processes: int, say: Say) -> GridResult:
    """Run every cell that is not finished.

    Args:
        plan: What is asked for.
        place: Data set, device and folder.
        processes: Cells at once; 0 runs them one by one in this process.
        say: Gets one line for each cell.
    """
    place.store.prepare()
    result = collect(plan, place, with_arrays=True)
    waiting = []
    for cell in plan.cells:
        if cell.key in result.records:
            continue
        fitted = cell.kind == "shallow" and cell.config.method.name in FITTED_BY_FAISS
        if fitted and find_spec("faiss") is None:
            result.left[cell.key] = NO_FAISS
        else:
            waiting.append(cell)
    # What cells start from is made for those that are to be run, here or elsewhere, only.
    unfinished = {cell.features for cell in plan.cells if cell.key not in result.records}
    waiting = [c for c in waiting if c.kind not in SHARED or c.key in unfinished]
    say(_opening(plan, result, waiting))
    begun = time.perf_counter()
    _Run(waiting, place, result, say, processes=processes).go()
    result.seconds = time.perf_counter() - begun
    return result


class _Run:
    """One pass over the cells that wait."""

    def __init__(
        self,
        cells: Sequence[Cell],
        place: Workplace,
        result: GridResult,
        say: Say,
        *,
        processes: int,
    ) -> None:
        self.processes = processes
        self.waiting = list(cells)
        self.total = len(cells)
        self.place = place
        self.result = result
        self.say = say
        self.tried: set[str] = set()
        gallery = int(place.facts["gallery"])
        self.compiling = Compiling(cells, device=place.device, gallery=gallery, processes=processes)

    def go(self) -> None:
        """Run all cells."""
        if not self.waiting:
            return
        decode = {"decode": [c.to_dict() for c in self.waiting if c.kind != "shallow"]}
        if not self.processes:
            self._decoded(do_job(decode, self.place))
            while (cell := self._next()) is not None:
                self._ended(cell, do_job(self._job(cell), self.place))
            return
        helped = bool(self.compiling.beforehand)
        crew = _Crew(min(self.processes, self.total), self.place, helped=helped)
        try:
            if decode["decode"]:  # one decodes before the others start
                crew.start(None, decode)
                self._decoded(crew.wait()[1])
            self._hand_out(crew)
        finally:
            crew.stop()

    def _hand_out(self, crew: _Crew) -> None:
        self._compile_next(crew)
        while True:
            while crew.free and (ready := self._next()) is not None:
                crew.start(ready, self._job(ready))
            if not crew.busy:
                return
            ended, answer = crew.wait()
            if ended is None:
                self._compiled(answer)
                self._compile_next(crew)
            elif answer.get("again") and ended.key not in self.tried:
                self.tried.add(ended.key)
                self.say(f"{ended.label}: {answer['error']}; it is tried once more")
                self.waiting.append(ended)
            else:
                self._ended(ended, answer)

    def _job(self, cell: Cell) -> dict[str, Any]:
        """Return what a worker is told about a cell that starts now."""
        return {"cell": cell.to_dict(), "compiled": self.compiling.compiles(cell)}

    def _compile_next(self, crew: _Crew) -> None:
        """Have the next code compiled; after the last one nobody is needed for that."""
        if self.compiling.beforehand:
            crew.ask_helper({"compile": self.compiling.beforehand[0].to_dict()})
        else:
            crew.dismiss_helper()

    def _compiled(self, answer: dict[str, Any]) -> None:
        cell = self.compiling.ended(well="error" not in answer)
        if "error" in answer:  # cells do without: it costs time, no result
            self.say(f"compiling for {cell.label} and its like failed: {answer['error']}")

    def _next(self) -> Cell | None:
        """Take the first cell whose start is there, rather one whose code need not be awaited.

        Cells whose start failed are given up.
        """
        for cell in list(self.waiting):
            if cell.features in self.result.failed:
                self.waiting.remove(cell)
                error = f"what it starts from failed: {self.result.failed[cell.features]}"
                note_failure(cell, self.place, error, error)
                self._ended(cell, {"error": error})
        there = [c for c in self.waiting if not c.features or c.features in self.result.records]
        if not there:
            return None
        chosen = min(there, key=self.compiling.is_awaited)  # the first of those, or of all
        self.waiting.remove(chosen)
        return chosen

    def _decoded(self, answer: dict[str, Any]) -> None:
        if "error" in answer:  # the cells will say the same, each with its own traceback
            self.say(f"decoding failed: {answer['error']}")

    def _ended(self, cell: Cell, answer: dict[str, Any]) -> None:
        result = self.result
        number = len(result.ran) + len(result.failed) + 1
        if "error" in answer:
            result.failed[cell.key] = answer["error"]
            log = self.place.store.log_path(cell.key)
            self.say(f"[{number}/{self.total}] {cell.label}: failed, {answer['error']} ({log})")
            return
        record = answer["record"]
        result.records[cell.key] = record
        result.ran.append(cell.key)
        result.cell_seconds += record["seconds"]["all"]
        scores = f"MAP {record['map']:.2f}" if "map" in record else "learned"
        if "map_learned" in record:
            scores += f", {record['map_learned']:.2f} with learned codes"
        seconds = record["seconds"]["all"]
        self.say(f"[{number}/{self.total}] {cell.label}: {scores} ({seconds:.1f} s)")


class _Crew:
    """Worker processes, each with a thread that speaks to it."""

    def __init__(self, size: int, place: Workplace, *, helped: bool = False) -> None:
        self.place = place
        self.threads = max(1, (os.cpu_count() or 1) // size)
        self.size = size
        self.events: queue.Queue[tuple[_Worker, Cell | None, dict[str, Any]]] = queue.Queue()
        # All at once: they take seconds to load torch, which pass while the first job is done.
        self.idle = [self._hire() for _ in range(size)]
        self.busy: set[_Worker] = set()
        # One more, that compiles for the others; with their share of the GPU, or the code differs.
        self.helper = self._hire(helps=True) if helped else None
        self.gone: list[_Worker] = []

    @property
    def free(self) -> int:
        return self.size - len(self.busy)

    def _hire(self, *, helps: bool = False) -> _Worker:
        return _Worker(self.place, self.threads, gpu_share(self.size), helps=helps)

    def start(self, cell: Cell | None, job: dict[str, Any]) -> None:
        """Give a job to an idle worker, or to one in place of a worker that died."""
        worker = self.idle.pop() if self.idle else self._hire()
        self.busy.add(worker)
        self._ask(worker, cell, job)

    def ask_helper(self, job: dict[str, Any]) -> None:
        """Give a job to the helper, or to one in place of a helper that died."""
        self.helper = self.helper or self._hire(helps=True)
        self._ask(self.helper, None, job)

    def dismiss_helper(self) -> None:
        """Let the helper go, and its memory with it; nobody waits for that before the end."""
        if self.helper is not None:
            self.helper.dismiss(at_once=False)
            self.gone.append(self.helper)
            self.helper = None

    def _ask(self, worker: _Worker, cell: Cell | None, job: dict[str, Any]) -> None:
        def speak() -> None:
            self.events.put((worker, cell, worker.ask(job)))

        worker.thread = threading.Thread(target=speak, daemon=True)
        worker.thread.start()

    def wait(self) -> tuple[Cell | None, dict[str, Any]]:
        """Wait for the next answer; that to a job without a cell comes with None."""
        worker, cell, answer = self.events.get()
        helps = worker is self.helper
        self.busy.discard(worker)
        if not answer.get("dead"):
            if not helps:
                self.idle.append(worker)
            return cell, answer
        worker.dismiss(at_once=True)
        worker.await_end()
        if helps:
            self.helper = None
        if cell is not None:
            note_failure(cell, self.place, answer["error"], answer["error"])
        return cell, answer

    def stop(self) -> None:
        """End all workers; what they were doing is lost, what is written stays."""
        unfinished = self.busy if self.helper is None else {*self.busy, self.helper}
        crew = [*self.idle, *unfinished]
        for worker in crew:  # all at once: on a GPU each takes seconds to let go
            worker.dismiss(at_once=worker in unfinished)
        for worker in (*crew, *self.gone):
            worker.await_end()


class _Worker:
    """A process that does jobs."""

    def __init__(
        self, place: Workplace, threads: int, environment: Mapping[str, str], *, helps: bool = False
    ) -> None:
        self.thread: threading.Thread | None = None
        # numpy reads these when it is loaded: workers must not fight over cores.
        limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
        # The same package as here, even where it is not installed.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        limits["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **limits, **environment},
        )
        self._send({"place": place.to_dict(), "threads": threads, "helps": helps})

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for the answer; a worker that dies answers by its exit code."""
        assert self.process.stdout is not None
        try:
            self._send(job)
            line = self.process.stdout.readline()
        except OSError:  # the pipe is broken
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self.process.wait()
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return {"error": f"the worker process {reason}", "again": True, "dead": True}

    def dismiss(self, *, at_once: bool) -> None:
        """Tell the process to end."""
        assert self.process.stdin is not None
        if at_once:
            self.process.terminate()
        with suppress(OSError):  # it may be gone already
            self.process.stdin.close()

    def await_end(self) -> None:
        """Wait for the end of a dismissed process; kill one that does not come to it."""
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.thread is not None:  # its read ends with the process
            self.thread.join(timeout=10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _send(self, content: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content) + "\n")
        self.process.stdin.flush()


def _opening(plan: Plan, result: GridResult, waiting: Sequence[Cell]) -> str:
    text = f"{len(plan.cells)} cells: {len(result.reused)} are there, {len(waiting)} to run"
    if result.left:
        text += f", {len(result.left)} left for later ({NO_FAISS})"
    return text
