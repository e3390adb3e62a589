from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from finished_runs import copy_run
from phpq.errors import MissingExtraError, UnknownNameError
from phpq.model import TorchModel, interface, load
from phpq.model.interface import ENCODER, sees_gpu


@pytest.mark.parametrize(
    ("device", "torch", "gpu", "exported", "chosen"),
    [
        ("auto", True, False, True, "onnx"),
        ("cpu", True, True, True, "onnx"),
        ("auto", True, True, True, "torch"),
        ("cuda", True, False, True, "torch"),
        ("auto", True, False, False, "torch"),
        ("auto", False, True, True, "onnx"),
        ("auto", False, False, False, "torch"),
    ],
)
def test_what_computes_is_chosen_by_what_is_there(
    device: str,
    torch: bool,
    gpu: bool,
    exported: bool,
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interface, "find_spec", lambda name: torch or None)
    monkeypatch.setattr(interface, "sees_gpu", lambda: gpu)
    if exported:
        (tmp_path / ENCODER).touch()
    assert interface._choose_runtime(tmp_path, device) == chosen


def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert sees_gpu()
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not sees_gpu()


def test_a_run_without_onnx_needs_torch_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    assert isinstance(load(run, device="cpu"), TorchModel)
    monkeypatch.delitem(sys.modules, "phpq.model.retrieval")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"'phpq\[train\]'.*phpq export"):
        load(run, runtime="torch")


def test_an_unknown_runtime_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"runtime 'onyx'.*Did you mean 'onnx'"):
        load(tmp_path, runtime="onyx")
