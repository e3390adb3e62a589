"""A run that is trained and evaluated once, and copied for every test that needs one."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from phpq.api import evaluate
from tiny_runs import tiny_birds, tiny_config, tiny_train


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="phpq-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tiny_train(folder / "run", tiny_config())
    evaluate(folder / "run", tiny_birds())
    return folder / "run"


def copy_run(target: Path, *, evaluated: bool = True) -> Path:
    """Put a finished run into `target`, with or without its evaluation; returns it."""
    ignored = shutil.ignore_patterns("evaluation") if not evaluated else None
    return Path(shutil.copytree(_template(), target, ignore=ignored))
