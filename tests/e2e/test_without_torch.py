"""Everything but training, in a fresh process in which importing torch raises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import without_torch


def test_index_search_evaluate_and_serve_need_no_torch(tmp_path: Path) -> None:
    without_torch.make(tmp_path)
    command = [sys.executable, without_torch.__file__, "use", str(tmp_path), "--block"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "works without torch" in done.stdout
