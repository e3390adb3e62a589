"""Most tests run cells that learn nothing (`puppet_cells`), in processes where that matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import puppet_cells
from made_up_grids import Finished, made_up_record, tiny_context, tiny_plan, tiny_subject
from phpq.reproduce import runner
from phpq.reproduce.grid import Cell, GridPlan
from phpq.reproduce.runner import MPS_SHARE, GridResult, Run, attempt, run_plan
from phpq.reproduce.work import WorkerContext


@pytest.fixture
def puppets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "attempt", puppet_cells.attempt)
    monkeypatch.setattr(runner, "load_libraries", puppet_cells.load_nothing)
    monkeypatch.setenv("OMP_NUM_THREADS", "here")
    return tmp_path


def run(plan: GridPlan, folder: Path, processes: int = 0) -> tuple[GridResult, list[str]]:
    lines: list[str] = []
    result = run_plan(plan, tiny_context(plan, folder), processes=processes, say=lines.append)
    return result, lines


def told(folder: Path) -> list[list[str]]:
    """Return key, process, whether it compiles and threads of each cell, as they started."""
    return [line.split() for line in (folder / "told").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("processes", [0, 2])
def test_all_cells_are_run_once(
    puppets: Path, capfd: pytest.CaptureFixture[str], processes: int
) -> None:
    plan = tiny_plan("table1", "phpq", "lsh", bits=(16, 32))
    result, lines = run(plan, puppets, processes)
    assert sorted(result.ran) == sorted(cell.key for cell in plan.cells)
    assert sorted(key for key, *_ in told(puppets)) == sorted(result.ran)
    assert result.cell_seconds == 2.0 * len(plan.cells)
    assert result.seconds > 0
    assert not result.failed
    assert len(lines) == len(plan.cells) + 1
    # This process has written down what the others found.
    assert set(tiny_context(plan, puppets).store.read_records()) == set(result.ran)
    ids = {process for _, process, *_ in told(puppets)}
    assert (ids == {str(os.getpid())}) is (processes == 0)
    assert len(ids) <= max(1, processes)
    assert os.environ["OMP_NUM_THREADS"] == "here"
    order = [key for key, *_ in told(puppets)]
    for cell in plan.cells:  # what a cell starts from was there
        assert not cell.start or cell.start in order[: order.index(cell.key)]
    if processes:  # libraries there got their limit before they were loaded, and stdout stays clean
        threads = str(max(1, (os.cpu_count() or 1) // processes))
        assert {threads for *_, threads in told(puppets)} == {threads}
        assert "a library prints" not in capfd.readouterr().out


def test_a_cell_that_fails_does_not_stop_the_others(puppets: Path) -> None:
    plan = tiny_plan("table1", "dpsh", "dsh", "phpq")
    result, lines = run(plan, puppets)
    assert len(result.ran) == 2
    ((key, error),) = result.failed.items()
    assert key.startswith("dsh-")
    assert error == "ConfigError: no"
    assert any("dsh, 16 bits, seed 0: failed" in line and "logs" in line for line in lines)
    store = tiny_context(plan, puppets).store
    record = store.read_records()[key]
    assert (record["status"], record["error"]) == ("failed", error)
    assert (store.folder / "logs" / f"{key}.log").read_text() == "Traceback: no"


def test_the_cell_of_a_killed_worker_is_tried_once_more(puppets: Path) -> None:
    (puppets / "deadly").write_text("phpq")
    result, lines = run(tiny_plan("table1", "dpsh", "phpq", "pqn"), puppets, processes=2)
    assert len(result.ran) == 3
    assert not result.failed
    # Nobody else's cell was lost.
    tried = sorted(key.partition("-")[0] for key, *_ in told(puppets))
    assert tried == ["dpsh", "phpq", "phpq", "pqn"]
    assert sum("was killed" in line and "it is tried once more" in line for line in lines) == 1


def test_a_cell_that_dies_twice_has_failed(puppets: Path) -> None:
    (puppets / "deadly").write_text("features-finetuned features-finetuned")
    plan = tiny_plan("table1", "sh")
    result, _ = run(plan, puppets)
    assert len(result.ran) == 2  # those on ImageNet features
    first, *others = (result.failed[key] for key in sorted(result.failed))
    assert first == runner.DIED
    assert others == [f"what it starts from failed: {runner.DIED}"] * 2
    records = tiny_context(plan, puppets).store.read_records()
    assert {records[key]["status"] for key in result.failed} == {"failed"}


def test_finished_cells_are_not_run_again(puppets: Path) -> None:
    plan = tiny_plan("table1", "dpsh", "hashnet", seeds=(1, 0))
    context = tiny_context(plan, puppets)
    done = next(cell for cell in plan.cells if not cell.keep)
    context.store.write_record(made_up_record(done, plan, 42.0))
    result, lines = run(plan, puppets)
    assert result.reused == [done.key]
    assert done.key not in [key for key, *_ in told(puppets)]
    assert result.records[done.key]["map"] == 42.0
    assert "1 are there, 3 to run" in lines[0]


def test_what_nobody_starts_from_is_not_made_again(puppets: Path) -> None:
    plan = tiny_plan("table1", "lsh", seeds=(1, 0))
    context = tiny_context(plan, puppets)
    late = [cell for cell in plan.cells if cell.kind == "shallow" and cell.seed == 0]
    for cell in late:
        context.store.write_record(made_up_record(cell, plan, 42.0))
    result, _ = run(plan, puppets)
    assert len(result.reused) == 3
    ran = {key for key in result.ran if key.startswith("features-finetuned")}
    assert ran == {cell.start for cell in plan.cells if cell.seed == 1} - {""} - {
        cell.start for cell in late
    }


def test_without_faiss_some_cells_are_left(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    plan = tiny_plan("table1", "lsh", "opq", "phpq")
    result, lines = run(plan, puppets)
    assert {key.partition("-")[0] for key in result.left} == {"opq"}
    assert not result.failed
    assert len(result.ran) == len(plan.cells) - 3  # one for each kind of features
    assert "3 left for later (faiss is not installed here" in lines[0]


def test_images_that_cannot_be_decoded(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cells: list[Cell], context: WorkerContext) -> None:
        assert {cell.kind for cell in cells} == {"features"}  # fitting needs no images
        raise OSError("no disk")

    monkeypatch.setattr(runner, "decode_once", fail)
    result, lines = run(tiny_plan("table1", "lsh"), puppets)
    assert lines[1] == "decoding failed: OSError: no disk"
    assert len(result.ran) == 5  # each cell shows by itself what it can do


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_keeps_what_is_done(puppets: Path) -> None:
    (puppets / "hold-phpq").touch()  # this one never ends by itself
    plan = tiny_plan("table1", "dpsh", "hashnet", "phpq")
    context = tiny_context(plan, puppets)

    def interrupt(line: str) -> None:
        if "[2/3]" in line:
            wait_until(lambda: len(told(puppets)) == 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, context, processes=2, say=interrupt)
    assert len(context.store.read_records()) == 2
    assert not any(is_alive(process) for _, process, *_ in told(puppets))


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(puppets: Path) -> None:
    (puppets / "hold-phpq").touch()
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
import puppet_cells
from made_up_grids import tiny_context, tiny_plan
from phpq.reproduce import runner
if __name__ == "__main__":
    runner.attempt, runner.load_libraries = puppet_cells.attempt, puppet_cells.load_nothing
    plan = tiny_plan("table1", "phpq")
    runner.run_plan(plan, tiny_context(plan, Path({str(puppets)!r})), processes=1, say=print)
"""
    script = puppets / "script.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.DEVNULL)
    wait_until(lambda: (puppets / "told").exists() and len(told(puppets)) == 1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ((_, process, *_),) = told(puppets)
    wait_until(lambda: not is_alive(process))


def test_in_this_process(finished: Finished) -> None:
    assert sorted(finished.result.ran) == sorted(cell.key for cell in finished.plan.cells)
    again = run_plan(finished.plan, finished.context, processes=0, say=lambda text: None)
    assert again.ran == []
    assert again.records == finished.result.records


@pytest.mark.rare  # equal only where this process has one thread of torch, as a worker has
def test_real_workers_do_the_same_as_this_process(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # as many threads as here: sums round alike
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject(epochs=2))
    result, _ = run(plan, tmp_path, processes=1)
    (key,) = result.ran
    expected = finished.result.records[key]
    for name in ("map", "by_epoch", "precision_at", "losses"):
        assert result.records[key][name] == pytest.approx(expected[name]), name


def test_a_failing_cell_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject("model.backbone=no_such_net"))
    context = tiny_context(plan, tmp_path)
    answer = attempt(plan.cells[0], context)
    assert "no_such_net" in answer["error"]
    assert answer["retry"] is False
    assert "Traceback" in answer["log"]

    class CompilerError(Exception):
        __module__ = "torch._inductor.exc"

    for error in (RuntimeError("CUDA out of memory. Tried ..."), MemoryError(), CompilerError()):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(runner, "run_cell", fail)
        assert attempt(plan.cells[0], context)["retry"] is True


@pytest.mark.parametrize(
    ("processes", "chosen", "share"),
    [(1, None, None), (2, None, "100"), (4, None, "60"), (8, "50", "50"), (999, None, "1")],
)
def test_processes_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, processes: int, chosen: str | None, share: str | None
) -> None:
    monkeypatch.delenv(MPS_SHARE, raising=False)
    if chosen is not None:
        monkeypatch.setenv(MPS_SHARE, chosen)
    with runner._workers(processes, "cuda"):
        assert os.environ.get(MPS_SHARE) == share
    assert os.environ.get(MPS_SHARE) == chosen


EPOCHS, SHARE = 6, "method.classifier_share=0.33"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a machine with a GPU and a compiler; any number of images is enough."""
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(runner, "find_spec", lambda name: object())
    monkeypatch.setattr(runner, "IMAGES_TO_COMPILE", 1)


def compiling(plan: GridPlan, folder: Path, device: str = "cuda") -> Run:
    context = replace(tiny_context(plan, folder), device=device)
    return Run(plan.cells, context, GridResult(plan, folder, {}, []), say=print)


@pytest.mark.usefixtures("gpu")
def test_the_first_cell_of_a_method_compiles_for_the_later_ones(tmp_path: Path) -> None:
    plan = tiny_plan("table1", "phpq", "dpsh", bits=(16, 32))
    rule = compiling(plan, tmp_path)
    first, second = (cell for cell in plan.cells if cell.config.method.name == "phpq")
    other = next(cell for cell in plan.cells if cell.config.method.name == "dpsh")
    assert rule.compiles(first)
    assert not rule.compiles(second)
    assert rule.compiles(other)
    rule.result.records[first.key] = {}
    assert rule.compiles(second)
    rule.retried.add(second.key)  # a second try does without
    assert not rule.compiles(second)


@pytest.mark.usefixtures("gpu")
def test_what_does_not_learn_does_not_compile(tmp_path: Path) -> None:
    plan = tiny_plan("table1", "lsh", "dpsh", subject=tiny_subject(SHARE, epochs=EPOCHS))
    rule = compiling(plan, tmp_path)
    first = [cell.key for cell in plan.cells if rule.compiles(cell)]
    assert [key.partition("-")[0] for key in first] == ["backbone", "dpsh"]
    rule.result.records |= {cell.key: {} for cell in plan.cells}
    names = [cell.key.rpartition("-seed")[0] for cell in plan.cells if rule.compiles(cell)]
    assert names == ["backbone", "features-finetuned", "dpsh-16bits"]


@pytest.mark.usefixtures("gpu")
def test_a_small_grid_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "phpq", "dpsh", subject=tiny_subject(SHARE, epochs=EPOCHS))
    # Two epochs of the classifier, and the other four of each method.
    images = plan.subject.gallery * (2 + 4 + 4)
    for enough, expected in ((images, True), (images + 1, False)):
        monkeypatch.setattr(runner, "IMAGES_TO_COMPILE", enough)
        assert compiling(plan, tmp_path).compiles(plan.cells[0]) is expected


@pytest.mark.usefixtures("gpu")
def test_only_where_a_compiler_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "phpq")

    def first_compiles(device: str) -> bool:
        return compiling(plan, tmp_path, device).compiles(plan.cells[0])

    assert first_compiles("cuda")
    assert first_compiles("cuda:1")
    assert not first_compiles("cpu")
    monkeypatch.delenv("CC")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not first_compiles("cuda")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(runner, "find_spec", lambda name: None)  # no triton
    assert not first_compiles("cuda")


def test_cells_are_told_whether_to_compile(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "compiles", lambda _, cell: cell.config.method.name == "phpq")
    run(tiny_plan("table1", "phpq", "dpsh"), puppets)
    by_key = sorted((key.partition("-")[0], compiled) for key, _, compiled, _ in told(puppets))
    assert by_key == [("dpsh", "False"), ("phpq", "True")]
