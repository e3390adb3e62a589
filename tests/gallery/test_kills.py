"""A process that writes is killed again and again: nothing that was committed is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(script: str, kills: int, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--kills", str(kills), "--json", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_a_gallery_survives_fifty_kills() -> None:
    result = run("kill_gallery.py", 54)
    assert result["kills"] == 54
    assert result["inside_a_change"] >= 50
    assert {"add", "bulk", "delete", "compact"} <= {row["change"] for row in result["rows"]}


@pytest.mark.slow
def test_a_killed_refit_leaves_the_old_codes_or_the_new_ones() -> None:
    result = run("kill_refit.py", 20)
    assert result["kills"] == 20
    assert result["inside_a_change"] > 10
    assert result["readers_checked"] > 0


@pytest.mark.rare  # a refit is killed above, on the same path
def test_a_killed_upgrade_leaves_one_model_or_the_other() -> None:
    result = run("kill_refit.py", 10, "--upgrades")
    assert result["kills"] == 10
    assert result["inside_a_change"] > 3
    assert result["readers_checked"] > 0
