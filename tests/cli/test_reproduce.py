from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_layouts import write_dogs120
from command_line import phpq, refused
from made_up_grids import BIRDS, TINY
from phpq.config import RECIPES
from phpq.reproduce.store import Store

SETTINGS: tuple[str, ...] = tuple(word for text in TINY for word in ("--set", text))
FAST = ("--bits", "16", "--epochs", "1", "--processes", "0", "--device", "cpu", *SETTINGS)


@pytest.mark.rare  # tests/methods/test_contract.py trains every method
def test_every_method_runs_end_to_end(tmp_path: Path) -> None:
    outcome = phpq(
        *("reproduce", "table1", "--dataset", "plumage", "--bits", "16", "--epochs", "2", "--json"),
        *("--out", str(tmp_path), "--processes", "0", "--device", "cpu"),
    )
    assert outcome.code == 0, outcome.err
    content = outcome.json()
    assert content["cells"]["failed"] == {}
    assert content["cells"]["left"] == 0
    rows = content["tables"]["table1"]["rows"]
    assert {row["method"] for row in rows} == set(RECIPES)
    assert all(0 < row["cells"]["16"]["mean"] <= 100 for row in rows)
    assert {row["name"] for row in rows if row["database"] == "learned"} == {"adsh", "exchnet"}


def test_stanford_dogs_in_the_official_layout(tmp_path: Path) -> None:
    dogs = write_dogs120(tmp_path / "dogs")
    outcome = phpq(
        *("reproduce", "table1", "--dataset", f"dogs120:{dogs}", "--methods", "phpq"),
        *("--seeds", "0", "--out", str(tmp_path / "out"), "--weights", "none", "--json", *FAST),
        *("--set", "model.backbone=test_resnet", "--set", "training.batch_size=4"),
        *("--set", "data.store_size=32", "--set", "data.crop_size=32"),
        *("--set", "data.eval_size=32"),
    )
    assert outcome.code == 0, outcome.err
    table = outcome.json()["tables"]["table1"]
    assert table["dataset"]["name"] == "dogs120"
    assert table["dataset"]["gallery"] == 4
    paper = {row["name"]: row["cells"]["16"]["paper"] for row in table["rows"]}
    assert paper == {"phpq": 81.01}
    assert list((tmp_path / "out" / "pixels").glob("*.npy"))


def test_for_people(tmp_path: Path) -> None:
    words = (
        *("reproduce", "table1", "--methods", "orthohash", "--dataset", BIRDS),
        *("--out", str(tmp_path), *FAST),
    )
    outcome = phpq(*words)
    assert outcome.code == 0, outcome.err
    assert "1 run, 0 were there" in outcome.out
    assert "table1-plumage.html" in outcome.out
    assert "[1/1]" in outcome.err
    again = phpq(*words, "--report-only", "--json")
    assert again.json()["cells"]["reused"] == 1
    assert len(again.json()["tables"]["table1"]["rows"]) == 1


def test_a_failed_cell_is_exit_code_1(tmp_path: Path) -> None:
    outcome = phpq(
        *("reproduce", "table1", "--methods", "phpq,orthohash", "--dataset", BIRDS, *FAST),
        *("--out", str(tmp_path), "--no-report", "--set", "quantizer.init=xavier"),
        *("--set", "model.embedding_norm=none", "--set", "training.learning_rate=1e30"),
    )
    assert outcome.code == 1
    assert "failed" in outcome.out
    assert list(Store(tmp_path).folder.glob("logs/*.log"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tabel1",), "Did you mean 'table1'"),
        (("table1", "--methods", "hashnett"), "Did you mean 'hashnet'"),
        (("table1", "--bits", "12"), "multiple of 8"),
        (("table1", "--bits", "many"), "whole numbers"),
        (("table1", "--seeds", ","), "--seeds 0,1,2"),
        (("table1", "--set", "loss.taau=1"), "Unknown option 'loss.taau'"),
        (("table1", "--weights", "no.bin"), "Cannot read the weights"),
    ],
)
def test_mistakes(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    text = refused("reproduce", *words, "--dataset", BIRDS, "--out", tmp_path, "--device", "cpu")
    assert message in text


def test_a_report_of_nothing_without_a_report(tmp_path: Path) -> None:
    outcome = phpq("reproduce", "table1", "--report-only", "--no-report", "--out", tmp_path)
    assert outcome.code == 2
