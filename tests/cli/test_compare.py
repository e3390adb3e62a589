"""`phpq compare` on the command line; what it measures is tested in tests/compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import phpq, refused
from made_up_comparisons import made_up_content
from phpq.compare.run import Options


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Answer at once, and keep what was asked."""
    calls: list[tuple[Any, ...]] = []

    def answer(source: str, out: Path, options: Options, **_: Any) -> dict[str, Any]:
        calls.append((source, out, options))
        return made_up_content() | {"skipped": [{"id": "a", "reason": "a is damaged"}]}

    monkeypatch.setattr("phpq.compare.run.compare", answer)
    return calls


def test_options_reach_the_library(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    rows = ("--rows", "1000", "--rows", "2000", "--minutes", "3")
    more = ("--backbone", "resnet50", "--seed", "4", "--hold-out-classes", "0.5")
    outcome = phpq("compare", "birds", *rows, *more, "--out", tmp_path, "--json")
    assert outcome.code == 0
    assert outcome.json()["advice"] == ["use this."]
    ((source, out, options),) = asked
    assert (source, out) == ("birds", tmp_path)
    assert options.rows == (1000, 2000)
    assert options.minutes == 3
    assert options.hold_out == 0.5
    assert options.settings == ("training.seed=4", "model.backbone=resnet50")


def test_a_table_and_advice_are_printed(asked: list[tuple[Any, ...]]) -> None:
    outcome = phpq("compare", "birds", "--model", "runs/a", "--model", "runs/b")
    assert "phpq 8 B, model's" in outcome.out
    assert "advice" in outcome.out
    assert "compare.html" in outcome.out
    assert "left out: a is damaged" in outcome.err
    assert asked[0][2].models == ("runs/a", "runs/b")


def test_mistakes_are_explained(tmp_path: Path) -> None:
    missing = refused("compare", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert "There is no file or folder" in missing
    assert "--trunk" in phpq("compare", "x", "--trunk", "a", "--backbone", "b").err
