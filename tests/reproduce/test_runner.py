"""Most tests here use a worker that learns nothing: a few lines of Python that obey a script."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up_grids import Finished, made_up_record, tiny_place, tiny_plan, tiny_subject
from phpq.reproduce import compiling, runner
from phpq.reproduce.grid import Plan
from phpq.reproduce.runner import GridResult, collect, run_plan
from phpq.reproduce.sharing import MPS_SHARE
from phpq.reproduce.workplace import Workplace

# Dies at cells that are named in the file "deadly", once for each time they are named there. Cells
# last until as many codes are compiled as the file "patience" says.
PUPPET = """
import json, os, pathlib, sys, time
place = json.loads(sys.stdin.readline())["place"]
folder = pathlib.Path(place["folder"])
for line in sys.stdin:
    job = json.loads(line)
    answer = {"record": None}
    if "cell" in job:
        cell = job["cell"]
        deadly = folder / "deadly"
        names = deadly.read_text().split() if deadly.exists() else []
        with (folder / "order").open("a") as order:
            order.write(cell["key"] + "\\n")
        with (folder / "compiled").open("a") as told:
            told.write(cell["key"] + " " + str(job["compiled"]) + "\\n")
        patience = folder / "patience"
        until = time.time() + 20
        while patience.exists() and time.time() < until:
            if (folder / "order").read_text().count("compile:") >= int(patience.read_text()):
                break
            time.sleep(0.02)
        named = [name for name in names if cell["key"].startswith(name)]
        if named:
            names.remove(named[0])
            deadly.write_text(" ".join(names))
            os.kill(os.getpid(), 9)
        if cell["config"]["method"]["name"] == "dsh":
            answer = {"error": "ConfigError: no", "again": False}
        else:
            answer = {"record": {"key": cell["key"], "map": 50.0, "seconds": {"all": 2.0}}}
    elif "compile" in job:
        if (folder / "no compiler").exists():
            answer = {"error": "RuntimeError: no compiler", "again": False}
        if (folder / "deadly compiler").exists():
            with (folder / "order").open("a") as order:
                order.write("compile:" + job["compile"]["key"] + "\\n")
            os.kill(os.getpid(), 9)
    else:
        (folder / "decoded").write_text(str(len(job["decode"])))
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
    if "compile" in job:
        time.sleep(0.2)  # the runner knows before any cell does
        with (folder / "order").open("a") as order:
            order.write("compile:" + job["compile"]["key"] + "\\n")
"""

Run = Callable[..., GridResult]


@pytest.fixture
def puppets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "WORKER", (sys.executable, "-c", PUPPET))
    return tmp_path


def run(plan: Plan, folder: Path, processes: int = 2) -> tuple[GridResult, list[str]]:
    said: list[str] = []
    result = run_plan(plan, tiny_place(plan, folder), processes=processes, say=said.append)
    return result, said


def test_all_cells_are_run_once(puppets: Path) -> None:
    plan = tiny_plan("table1", "dpsh", "hashnet", "phpq", "lsh", bits=(16, 32))
    result, said = run(plan, puppets)
    assert sorted(result.ran) == sorted(cell.key for cell in plan.cells)
    assert sorted((puppets / "order").read_text().split()) == sorted(result.ran)
    assert result.cell_seconds == 2.0 * len(plan.cells)
    assert result.seconds > 0
    assert not result.failed
    assert len(said) == len(plan.cells) + 1
    # Cells of stored features need no images.
    assert (puppets / "decoded").read_text() == str(3 * 2 + 2)


def test_shallow_cells_wait_for_their_features(puppets: Path) -> None:
    plan = tiny_plan("table1", "lsh", "sh", bits=(16, 32), seeds=(0, 1))
    run(plan, puppets, processes=3)
    order = (puppets / "order").read_text().split()
    for cell in plan.cells:
        if cell.features:
            assert order.index(cell.features) < order.index(cell.key)


def test_a_cell_that_fails_does_not_stop_the_others(puppets: Path) -> None:
    result, said = run(tiny_plan("table1", "dpsh", "dsh", "phpq"), puppets)
    assert len(result.ran) == 2
    ((key, error),) = result.failed.items()
    assert key.startswith("dsh-")
    assert error == "ConfigError: no"
    assert any("dsh, 16 bits, seed 0: failed" in line and "logs" in line for line in said)


def test_the_cell_of_a_killed_worker_is_tried_once_more(puppets: Path) -> None:
    (puppets / "deadly").write_text("phpq")
    result, said = run(tiny_plan("table1", "dpsh", "phpq"), puppets)
    assert len(result.ran) == 2
    assert not result.failed
    assert any("killed by signal 9; it is tried once more" in line for line in said)


def test_a_cell_that_kills_its_worker_twice_has_failed(puppets: Path) -> None:
    (puppets / "deadly").write_text("phpq phpq")
    plan = tiny_plan("table1", "dpsh", "phpq")
    result, _ = run(plan, puppets, processes=1)
    assert [key.partition("-")[0] for key in result.ran] == ["dpsh"]
    assert list(result.failed.values()) == ["the worker process was killed by signal 9"]
    record = tiny_place(plan, puppets).store.read(next(iter(result.failed)))
    assert record is not None
    assert record["status"] == "failed"


def test_without_features_their_cells_are_given_up(puppets: Path) -> None:
    (puppets / "deadly").write_text("features-finetuned features-finetuned")
    plan = tiny_plan("table1", "sh")
    result, _ = run(plan, puppets, processes=1)
    assert len(result.failed) == 2
    assert any("what it starts from failed" in error for error in result.failed.values())
    assert len(result.ran) == 2  # those on ImageNet features


def test_finished_cells_are_not_run_again(puppets: Path) -> None:
    plan = tiny_plan("table1", "dpsh", "hashnet", seeds=(1, 0))
    place = tiny_place(plan, puppets)
    done = next(cell for cell in plan.cells if not cell.keep)
    place.store.write_record(made_up_record(done, plan, 42.0))
    result, said = run(plan, puppets)
    assert result.reused == [done.key]
    assert done.key not in (puppets / "order").read_text()
    assert result.records[done.key]["map"] == 42.0
    assert "1 are there, 3 to run" in said[0]


def test_what_nobody_starts_from_is_not_made_again(puppets: Path) -> None:
    plan = tiny_plan("table1", "lsh", seeds=(1, 0))
    place = tiny_place(plan, puppets)
    late = [cell for cell in plan.cells if cell.kind == "shallow" and cell.seed == 0]
    for cell in late:
        place.store.write_record(made_up_record(cell, plan, 42.0))
    result, _ = run(plan, puppets)
    assert len(result.reused) == 2
    ran = {key for key in result.ran if key.startswith("features-finetuned")}
    assert ran == {cell.features for cell in plan.cells if cell.seed == 1} - {""} - {
        cell.features for cell in late
    }


def test_without_faiss_some_cells_are_left(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    plan = tiny_plan("table1", "lsh", "itq", "phpq")
    result, said = run(plan, puppets)
    assert {key.partition("-")[0] for key in result.left} == {"itq"}
    assert not result.failed
    assert len(result.ran) == len(plan.cells) - 2
    assert "2 left for later (faiss is not installed here" in said[0]


def test_ctrl_c_keeps_what_is_done(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "dpsh", "hashnet", "phpq")
    crews: list[Any] = []
    wait = runner._Crew.wait

    def interrupted(self: Any) -> Any:
        crews.append(self)
        if len(crews) == 3:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(runner._Crew, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(plan, puppets)
    crew = crews[0]
    assert not any(worker.alive for worker in (*crew.idle, *crew.busy))
    assert len((puppets / "order").read_text().split()) >= 1


def test_in_this_process(finished: Finished) -> None:
    assert sorted(finished.result.ran) == sorted(cell.key for cell in finished.plan.cells)
    again = run_plan(finished.plan, finished.place, processes=0, say=lambda text: None)
    assert again.ran == []
    assert (
        again.records == finished.result.records == collect(finished.plan, finished.place).records
    )


@pytest.mark.slow
def test_real_workers_do_the_same_as_this_process(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # as many threads as here: sums round alike
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject(epochs=2))
    place: Workplace = tiny_place(plan, tmp_path)
    result = run_plan(plan, place, processes=1, say=lambda text: None)
    (key,) = result.ran
    expected = finished.result.records[key]
    for name in ("map", "by_epoch", "precision_at", "losses"):
        assert result.records[key][name] == pytest.approx(expected[name]), name


@pytest.fixture
def compiler(puppets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiling, "can_compile", lambda device: True)
    monkeypatch.setattr(compiling, "IMAGES_TO_COMPILE", 1)
    return puppets


def told(folder: Path) -> list[str]:
    """Return whether cells were told to compile, in the order in which they started."""
    return [line.split()[1] for line in (folder / "compiled").read_text().splitlines()]


def test_one_by_one_all_cells_are_told_to_compile(compiler: Path) -> None:
    result, _ = run(tiny_plan("table1", "dpsh", "hashnet", "phpq"), compiler, processes=1)
    assert told(compiler) == ["True"] * 3
    assert "compile" not in (compiler / "order").read_text()
    assert len(result.ran) == 3


def test_at_once_a_further_process_compiles_first(compiler: Path) -> None:
    (compiler / "patience").write_text("2")
    plan = tiny_plan("table1", "dpsh", "phpq", bits=(16, 32, 48, 64))
    result, said = run(plan, compiler)
    assert len(result.ran) == len(plan.cells)
    assert len(said) == len(plan.cells) + 1
    order = (compiler / "order").read_text().split()
    compiled = [line for line in order if line.startswith("compile:")]
    assert sorted(line[8:].partition("-")[0] for line in compiled) == ["dpsh", "phpq"]
    # The first two start when nothing is compiled yet.
    assert told(compiler) == ["False"] * 2 + ["True"] * (len(plan.cells) - 2)


def test_cells_that_await_their_code_let_others_go_first(compiler: Path) -> None:
    plan = tiny_plan("table1", "dpsh", "phpq", bits=(16, 32, 48, 64))
    place = tiny_place(plan, compiler)
    going = runner._Run(plan.cells, place, GridResult(), print, processes=2)
    order = [cell.config.method.name for cell in plan.cells]
    begun = [going._next(), going._next()]
    assert begun == list(plan.cells[:2])
    (first, second) = (cell.config.method.name for cell in going.compiling.beforehand)
    going.compiling.ended(well=True)
    rest = []
    while (cell := going._next()) is not None:
        rest.append(cell.config.method.name)
    assert rest == [first] * order[2:].count(first) + [second] * order[2:].count(second)


@pytest.mark.parametrize("trouble", ["no compiler", "deadly compiler"])
def test_without_a_compiler_cells_go_without(compiler: Path, trouble: str) -> None:
    (compiler / trouble).touch()
    (compiler / "patience").write_text("2")
    plan = tiny_plan("table1", "dpsh", "phpq", bits=(16, 32, 48, 64), seeds=(0, 1))
    result, said = run(plan, compiler)
    assert len(result.ran) == len(plan.cells)
    assert not result.failed
    assert set(told(compiler)) == {"False"}
    failed = [line for line in said if line.startswith("compiling for ")]
    assert len(failed) == 2
    reason = "no compiler" if trouble == "no compiler" else "killed by signal 9"
    assert all(reason in line for line in failed)


def test_workers_get_their_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MPS_SHARE, raising=False)
    seen: list[dict[str, str]] = []

    class Process:
        stdin = io.StringIO()

    def start(words: object, *, env: dict[str, str], **_: object) -> Process:
        seen.append(env)
        return Process()

    monkeypatch.setattr("subprocess.Popen", start)
    plan = tiny_plan("table1", "phpq")
    place = tiny_place(plan, Path("unused"))
    for size in (1, 4):
        runner._Crew(size, place)
    assert [env.get(MPS_SHARE) for env in seen] == [None, *["60"] * 4]
    # The code depends on the share: who compiles for the others has the same.
    seen.clear()
    runner._Crew(4, place, helped=True)
    assert [env.get(MPS_SHARE) for env in seen] == ["60"] * 5
