"""`phpq demo` as a newcomer types it, in its quick form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import phpq, refused
from phpq import demo


@pytest.mark.slow
def test_demo_prints_figures_files_and_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = phpq("demo", "--quick")
    assert first.code == 0, first.err
    metrics = json.loads(Path("phpq-demo/metrics.json").read_text("utf-8"))
    for figure in (*metrics["map"].values(), metrics["map_float"], metrics["map_pq"]):
        assert f"{figure:.2f}" in first.out
    assert "the figures say nothing" in first.out
    assert "phpq-demo/report.html" in first.out
    assert "epoch   2  MAP" in first.err  # the loop's progress

    [search] = [line for line in first.out.splitlines() if "phpq search" in line]
    found = phpq(*search.split()[2:], "--json").json()
    assert len(found["queries"][0]["hits"]) == 10


def test_json_is_the_content_of_metrics_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    class Result:
        def to_dict(self) -> dict[str, object]:
            return {"map": {"16": 1.0}}

    def run_demo(out: Path, *, reporter: object, **options: object) -> Result:
        asked.update(options, out=out)
        return Result()

    monkeypatch.setattr(demo, "run_demo", run_demo)
    outcome = phpq("demo", "--seed", "3", "--out", tmp_path, "--json")
    assert outcome.json() == {"map": {"16": 1.0}}
    assert asked == {"out": tmp_path, "seed": 3, "quick": False}


def test_a_folder_of_other_things_is_refused_before_anything_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.run, "train_run", lambda *_, **__: pytest.fail("it learned"))
    (tmp_path / "photo.jpg").write_text("precious")
    message = refused("demo", "--quick", "--out", tmp_path)
    assert message.startswith(repr(str(tmp_path)))
    assert "holds no earlier demo" in message
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_ctrl_c_says_that_nothing_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.run, "train_run", interrupt)
    stopped = phpq("demo", "--quick", "--out", tmp_path / "out")
    assert stopped.code == 130
    assert stopped.err.endswith("interrupted. Nothing was changed.\n")
    assert not (tmp_path / "out").exists()
