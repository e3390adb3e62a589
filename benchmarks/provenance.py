"""Where numbers come from: what every benchmark writes beside what it measured."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from phpq.machine import code_commit, processor


def provenance(options: argparse.Namespace, *, gpu: bool = False) -> dict[str, Any]:
    """Return command, settings, commit, date and machine, as plain data without folders.

    With `gpu` torch is asked for the GPU, else only where it is loaded already. A commit may be
    given as `--commit` or PHPQ_COMMIT, for a copy of the code that git does not know.
    """
    given = getattr(options, "commit", None) or os.environ.get("PHPQ_COMMIT")
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {
        "command": shlex.join(["python", *map(without_folders, words)]),
        "settings": {name: _plain(value) for name, value in vars(options).items()},
        "commit": given or code_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(gpu=gpu),
    }


def machine(*, gpu: bool) -> dict[str, Any]:
    """Return processor, cores, Python and, as `provenance` says, torch and its GPU."""
    torch: Any = import_module("torch") if gpu else sys.modules.get("torch")
    return {
        "gpu": torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None,
        "cpu": processor(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": str(torch.__version__) if torch else None,
    }


def without_folders(word: str) -> str:
    """Keep the name of a file: the folder it lies in says nothing elsewhere."""
    return re.sub(r"(?<![^:=])(?:/[^/\s:=]+)+/([^/\s:=]+)", r"\1", word)


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return without_folders(str(value))
