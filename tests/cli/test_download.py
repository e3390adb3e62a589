from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_layouts import write_cub200
from command_line import phpq


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path))
    write_cub200(tmp_path / "cub200" / "CUB_200_2011")
    outcome = phpq("download", "cub200", "--json")
    assert outcome.json() == {
        "name": "cub200",
        "folder": str(tmp_path / "cub200"),
        "source": "cub200",
    }
    assert phpq("info", "cub200", "--json").json()["train_images"] == 4
    shown = phpq("download", "cub200", "--out", tmp_path).out
    assert "phpq train" in shown
    monkeypatch.delenv("PHPQ_HOME")
    named = phpq("download", "cub200", "--out", tmp_path, "--json").json()
    assert phpq("info", named["source"], "--json").json()["train_images"] == 4


def test_progress_is_shown_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Path]] = []

    def fetch(name: str, folder: Path, *, progress: object) -> Path:
        assert callable(progress)
        progress("cub.tgz", 10, 100)
        progress("cub.tgz", 100, 100)
        seen.append((name, folder))
        return folder / name

    monkeypatch.setattr("phpq.data.download.download", fetch)
    assert phpq("download", "dogs120", "--out", tmp_path, "--json").json()["name"] == "dogs120"
    assert seen == [("dogs120", tmp_path)]
