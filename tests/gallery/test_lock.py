from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phpq.errors import DataError
from phpq.gallery.lock import LOCK, writing

HOLD = """
import sys, time
from pathlib import Path
from phpq.gallery.lock import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_waits_then_is_told_who_writes(tmp_path: Path) -> None:
    with (
        writing(tmp_path),
        pytest.raises(DataError, match=r"another process \(number \d+\).*Nothing was lost"),
        writing(tmp_path, timeout=0.05),
    ):
        pass
    with writing(tmp_path, timeout=0):  # freed
        pass


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataError, match=f"number {holder.pid}"), writing(tmp_path, timeout=0):
            pass
        holder.kill()
        holder.wait()
        with writing(tmp_path, timeout=5):
            assert (tmp_path / LOCK).is_file()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be changed"), writing(tmp_path / "none"):
        pass
