"""Where numbers come from: what every benchmark writes beside what it measured."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def provenance(options: argparse.Namespace) -> dict[str, Any]:
    """Return command, settings, commit, date and machine of this process, as plain data.

    A commit given as `--commit` counts, for a copy of the code that git does not know.
    """
    settings = {name: _plain(value) for name, value in vars(options).items()}
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "settings": settings,
        "commit": getattr(options, "commit", None) or commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return processor, cores and Python; the GPU too, where this process uses one."""
    try:
        found = re.search(r"model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if torch is not None and on_gpu else None,
        "cpu": found[1] if found else platform.machine(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
    }


def commit() -> str:
    """Ask git which commit this code is, and whether it was changed; empty where there is none."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return value.name  # the folder it lies in says nothing elsewhere
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
