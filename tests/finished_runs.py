"""A run that is trained and evaluated once, and copied for every test that needs one."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from phpq.api import evaluate
from phpq.model.checkpoint import read_card
from phpq.model.export import export_onnx
from phpq.model.interface import ONNX_FILES
from phpq.model.retrieval import load_torch
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


@functools.cache
def _onnx_template() -> Path:
    run = copy_run(_template().parent / "onnx")
    for space, name in ONNX_FILES.items():
        export_onnx(load_torch(run, read_card(run), device="cpu"), run / name, space=space)
    return run


def copy_onnx_run(target: Path) -> Path:
    """Put a finished, evaluated run with its ONNX files into `target`; returns it."""
    return Path(shutil.copytree(_onnx_template(), target))
