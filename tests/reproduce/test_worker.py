from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from made_up_grids import tiny_place, tiny_plan, tiny_subject
from phpq.reproduce import worker
from phpq.reproduce.worker import do_job, serve


def test_a_stream_of_jobs(tmp_path: Path) -> None:
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject(epochs=1))
    place = tiny_place(plan, tmp_path)
    cell = plan.cells[0].to_dict()
    lines = [{"place": place.to_dict(), "threads": 0}, {"decode": [cell]}, {"cell": cell}]
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), answers)
    decoded, trained = map(json.loads, answers.getvalue().splitlines())
    assert decoded == {"record": None}
    assert trained["record"] == place.store.read(plan.cells[0].key)


def test_a_parent_that_is_gone() -> None:
    answers = io.StringIO()
    serve(io.StringIO(""), answers)
    assert answers.getvalue() == ""


def test_a_failing_cell_is_written_down(tmp_path: Path) -> None:
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject("model.backbone=no_such_net"))
    place = tiny_place(plan, tmp_path)
    answer = do_job({"cell": plan.cells[0].to_dict()}, place)
    assert "no_such_net" in answer["error"]
    assert answer["again"] is False
    record = place.store.read(plan.cells[0].key)
    assert record is not None
    assert record["status"] == "failed"
    assert record["error"] == answer["error"]
    assert "Traceback" in place.store.log_path(plan.cells[0].key).read_text()
    assert place.store.finished(plan.cells[0], "none") is None


def test_a_lack_of_memory_is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan("table1", "orthohash")
    place = tiny_place(plan, tmp_path)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(worker, "run_cell", fail)
    assert do_job({"cell": plan.cells[0].to_dict()}, place)["again"] is True


def test_compiling_for_others_is_a_job_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "orthohash")
    place = tiny_place(plan, tmp_path)
    job = {"compile": plan.cells[0].to_dict()}
    seen: list[str] = []
    monkeypatch.setattr(worker, "compile_for", lambda cell, place: seen.append(cell.key))
    assert do_job(job, place) == {"record": None}
    assert seen == [plan.cells[0].key]

    def fail(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(worker, "compile_for", fail)
    assert do_job(job, place) == {"error": "RuntimeError: no compiler", "again": False}
    assert place.store.read(plan.cells[0].key) is None  # the cell itself has not failed


@pytest.mark.parametrize(("helps", "expected"), [(True, [worker.NICENESS]), (False, [])])
def test_who_helps_lets_others_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool, expected: list[int]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "nice", asked.append)
    place = tiny_place(tiny_plan("table1", "orthohash"), tmp_path)
    first = {"place": place.to_dict(), "threads": 0, "helps": helps}
    serve(io.StringIO(json.dumps(first) + "\n"), io.StringIO())
    assert asked == expected
