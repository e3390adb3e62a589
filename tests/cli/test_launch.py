"""`phpq train` under a launcher: one result, one voice, exit codes that a script can use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import phpq, tiny_toml
from phpq.cli._launch import NAMES, find_group
from phpq.data import write_plumage
from phpq.errors import ConfigError
from phpq.evaluation.history import read_rows
from phpq.training.distributed import Group
from process_groups import environment, launched
from tiny_runs import tiny_birds


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with drawn birds and tiny settings."""
    write_plumage(tmp_path / "birds", tiny_birds())
    tiny_toml(tmp_path)
    return tmp_path


OPTIONS = ("--config", "tiny.toml", "--epochs", "2", "--device", "cpu")


@pytest.mark.rare  # torchrun starts two below
def test_two_processes_give_one_run_and_speak_with_one_voice(place: Path) -> None:
    arguments = ("train", "birds", *OPTIONS, "--out", "run")
    assert launched(2, place, *arguments) == [0, 0]
    assert "after the last epoch (2)" in (place / "0.out").read_text()
    assert "backbone=test_resnet" in (place / "0.err").read_text()
    assert (place / "1.out").read_text() == ""
    assert (place / "1.err").read_text() == ""
    assert phpq("info", place / "run").code == 0
    # A finished run is not resumed, by whatever number of processes; one message says so.
    assert launched(2, place, "train", "--resume", "run") == [2, 2]
    assert one_message(place).count("is finished") == 1


def one_message(place: Path) -> str:
    """Return what both processes wrote to stderr: one error, and no traceback."""
    said = (place / "0.err").read_text() + (place / "1.err").read_text()
    assert said.count("error[") == 1, said
    assert "Traceback" not in said
    assert (place / "0.out").read_text() + (place / "1.out").read_text() == ""
    return said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("train", "birds", *OPTIONS, "--set", "training.batch_size=7", "--out", "run"),
            "training.batch_size=7 cannot be shared equally by 2 processes",
        ),
        (("train", "nowhere", *OPTIONS), "nowhere"),
        (("train", "birds", *OPTIONS, "--out", "birds"), "is not empty"),
        (("train", "birds", *OPTIONS, "--set", "training.epohcs=3"), "epohcs"),
        (("train", "birds", "--config", "tiny.toml", "--device", "meta"), "does not serve several"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    place: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert launched(2, place, *arguments) == [2, 2]
    assert message in one_message(place)
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    "option", [("--epohcs", "3"), pytest.param(("--epochs", "many"), marks=pytest.mark.rare)]
)
def test_a_command_line_that_cannot_be_read_is_refused_once(
    place: Path, option: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launched(2, place, "train", "birds", *option) == [2, 2]
    said = (place / "0.err").read_text()
    assert option[0] in said
    assert "Traceback" not in said
    assert (place / "1.err").read_text() == ""
    # Without a launcher, or with some of its names only, a process speaks for itself.
    monkeypatch.setenv("RANK", "1")
    outcome = phpq("train", "birds", *option)
    assert outcome.code == 2
    assert option[0] in outcome.err


@pytest.mark.slow
def test_torchrun_runs_the_real_command(place: Path) -> None:
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*started, "-m", "phpq", "train", "birds", *OPTIONS, "--out", "run"]
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    source = Path(sys.modules["phpq"].__file__ or "").parents[1]
    environment = clean | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after the last epoch (2)") == 1
    assert [row["epoch"] for row in read_rows(place / "run")] == [1, 2]


def test_the_launcher_is_known_by_all_that_it_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    assert find_group() is None
    group = Group(3, 4, 1, 2)
    for name, value in environment(group, 1234).items():
        assert find_group() is None
        monkeypatch.setenv(name, value)
    assert find_group() == group
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="'first'"):
        find_group()
