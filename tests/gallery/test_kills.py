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
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    "kills", [pytest.param(20, marks=pytest.mark.slow), pytest.param(54, marks=pytest.mark.rare)]
)
def test_a_gallery_survives_kills(kills: int) -> None:
    result = run("kill_gallery.py", kills)
    assert result["kills"] == kills
    assert result["inside_a_change"] >= 0.9 * kills
    assert {"add", "bulk", "delete", "compact"} <= {row["change"] for row in result["rows"]}


@pytest.mark.parametrize(
    "kills", [pytest.param(8, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.rare)]
)
def test_a_killed_refit_leaves_the_old_codes_or_the_new_ones(kills: int) -> None:
    result = run("kill_refit.py", kills)
    assert result["kills"] == kills
    assert result["inside_a_change"] > kills / 3
    assert result["readers_checked"] > 0


@pytest.mark.rare  # a refit is killed above, on the same path
def test_a_killed_upgrade_leaves_one_model_or_the_other() -> None:
    result = run("kill_refit.py", 10, "--upgrades")
    assert result["kills"] == 10
    assert result["inside_a_change"] > 3
    assert result["readers_checked"] > 0
