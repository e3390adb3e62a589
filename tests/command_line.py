"""Runs `phpq` in this process, as the entry point does, and keeps what it printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from phpq.cli import app
from tiny_runs import TINY


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Return the one JSON document that stdout must be."""
        content = json.loads(self.out)
        assert isinstance(content, dict)
        return content


def phpq(*arguments: str | Path) -> Outcome:
    """Run one command; an exception that is not turned into an exit code fails the test."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def refused(*arguments: str | Path) -> str:
    """Run a command that must fail by a message alone; returns the message."""
    outcome = phpq(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    before, title, message = re.split(r"(error\[[a-z-]+\]: )", outcome.err, maxsplit=1)
    # Only what a run reads, and its settings, may come first, and nothing comes after.
    assert title, outcome.err
    assert before == "" or "training and" in before.splitlines()[0]
    return message


def tiny_toml(folder: Path) -> Path:
    """Write the tiny settings as a TOML file."""
    lines = []
    for stage, fields in TINY.items():
        lines.append(f"[{stage}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    path = folder / "tiny.toml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def imported_by(code: str, *arguments: str) -> set[str]:
    """Run code in a fresh interpreter; returns the top-level modules that it left."""
    listing = "\nimport sys; print('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code + listing, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES")[2].split())
