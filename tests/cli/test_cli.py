"""The group itself: help, version, unknown commands, and how errors become exit codes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import phpq, refused
from finished_runs import copy_run
from phpq import __version__
from phpq.cli import COMMANDS, app, with_address
from phpq.errors import ConfigError


def test_version_and_help() -> None:
    assert phpq("--version").out == f"phpq {__version__}\n"
    listed = phpq("--help").out
    assert all(name in listed for name in COMMANDS)
    assert set(COMMANDS) == {
        "advise",
        "audit",
        "card",
        "compare",
        "demo",
        "doctor",
        "download",
        "evaluate",
        "export",
        "gallery",
        "index",
        "info",
        "reproduce",
        "search",
        "serve",
        "train",
    }


def test_alone_it_shows_the_five_commands_that_matter() -> None:
    outcome = phpq()
    assert outcome.code == 0
    shown = re.findall(r"^  phpq (\w+)", outcome.out, re.MULTILINE)
    assert shown == ["demo", "train", "index", "search", "serve"]
    assert all(len(line) <= 80 for line in outcome.out.splitlines())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("phpq do", "download\ndoctor"),
        ("phpq gallery up", "upgrade"),
        ("phpq train --trunk", "--trunk"),
    ],
)
def test_shells_complete_commands_and_options(line: str, wanted: str) -> None:
    """As the script of `phpq --install-completion` asks, in a shell that is waiting."""
    asked = {
        "_PHPQ_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "phpq"],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )
    assert done.stdout.strip() == wanted
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    outcome = phpq(name, "--help")
    assert outcome.code == 0
    assert "Usage:" in outcome.out
    assert "<bool>" not in outcome.out  # a flag takes no value


def test_help_fills_the_lines_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = phpq("gallery", "verify", "--help").out.splitlines()
    first = next(number for number, line in enumerate(lines) if "A repair sets" in line)
    words = lines[first + 1].split()
    assert len(lines[first].strip()) + len(words[0]) > 76  # not broken where the source is


def test_wrong_usage_is_exit_code_2() -> None:
    unknown = phpq("trian")
    assert unknown.code == 2
    assert "Did you mean 'train'?" in unknown.err
    assert phpq("train", "--bitz", "32").code == 2
    assert phpq("train").code == 2
    assert phpq("search", "run", "a.jpg", "--top-k", "0").code == 2


def test_an_error_is_one_message_and_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> None:
        def describe(**_: object) -> dict[str, object]:
            raise error

        monkeypatch.setattr("phpq.machine.describe_machine", describe)

    fail(ConfigError("a [red] and\na long " + "x" * 200))
    outcome = phpq("info")
    assert (outcome.code, outcome.out) == (2, "")
    # Neither markup nor wrapping: the message as it was raised.
    assert outcome.err == "error[config]: a [red] and\na long " + "x" * 200 + "\n"
    fail(KeyboardInterrupt("Go on with this."))
    outcome = phpq("info")
    assert (outcome.code, outcome.err) == (130, "interrupted. Go on with this.\n")
    fail(ZeroDivisionError("our own mistake"))
    with pytest.raises(ZeroDivisionError):
        phpq("info")
    assert app.pretty_exceptions_enable is False


def test_a_place_that_cannot_be_written_to_is_the_users_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    run = copy_run(tmp_path / "run")
    made = "cannot be used: Not a directory. Name a place"
    assert made in refused("card", run, "--out", tmp_path / "file" / "card.md")
    absent = refused("card", run, "--out", tmp_path / "none" / "card.md")
    assert "none' cannot be used: No such file or directory" in absent

    def fail(number: int) -> None:
        def write(*_: object, **__: object) -> None:
            raise OSError(number, "no", str(tmp_path / ".card.md.x1.tmp"))

        monkeypatch.setattr("phpq.files.replacing", write)

    fail(errno.EROFS)
    assert f"'{tmp_path}' cannot be used" in refused("card", run)
    fail(errno.EIO)
    with pytest.raises(OSError, match="no"):
        phpq("card", run)


def test_the_entry_point_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from phpq.cli import main; main()", "train", "no/such/folder"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error[data]: There is no file or folder 'no/such/folder'. Accepted:"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("index g src", "index g src"),
        ("index g src --ray", "index g src --ray local"),
        ("index --ray g src", "index --ray local g src"),
        ("index g src --ray auto", "index g src --ray auto"),
        ("index g src --ray head:6379 --json", "index g src --ray head:6379 --json"),
        ("serve g --ray ray://head:10001", "serve g --ray ray://head:10001"),
        ("serve g --ray --shards 4", "serve g --ray local --shards 4"),
        ("index g src --ray=auto", "index g src --ray=auto"),
        ("index --ray -- --ray src", "index --ray local -- --ray src"),
        ("", ""),
    ],
)
def test_a_bare_option_gets_an_address(line: str, wanted: str) -> None:
    assert with_address(line.split()) == wanted.split()
