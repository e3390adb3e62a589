"""A process that writes is killed again and again: nothing that was committed is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_gallery.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_gallery_survives_fifty_kills() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "54", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == 54
    assert result["inside_a_change"] >= 50
    assert {"add", "bulk", "delete", "compact"} <= {row["change"] for row in result["rows"]}
