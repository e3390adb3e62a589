from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from command_line import phpq, refused
from phpq import machine
from phpq.errors import BadImageError, error_pages


def test_what_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(bytes(3_000_000))
    content = phpq("doctor", "--json").json()
    assert content["missing"] == []
    assert content["caches"][0]["bytes"] == 3_000_000
    shown = phpq("doctor").out
    assert f"{tmp_path / 'kept'}: 3 MB" in shown
    assert "nothing: all extras are here" in shown
    assert phpq("info").out.splitlines()[0] == shown.splitlines()[0]


def test_what_is_missing_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    absent = {"torch", "faiss", "ray"}
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in absent else real(name))
    shown = phpq("doctor").out
    assert "torch, for training and the demo; heat maps: pip install 'phpq[train]'" in shown
    assert "pip install 'phpq[faiss]'" in shown
    assert "ray, for several machines (--ray): pip install 'phpq[ray]'" in shown
    assert "timm, for" not in shown


@pytest.mark.parametrize("code", error_pages())
def test_every_code_is_explained(code: str) -> None:
    outcome = phpq("doctor", code)
    assert outcome.code == 0
    assert "Error." in outcome.out
    assert "•" in outcome.out  # texts of the error, each with what to do


def test_a_class_is_as_good_as_its_code_and_others_are_refused() -> None:
    assert phpq("doctor", "BadImageError").out == phpq("doctor", BadImageError.code).out
    assert phpq("doctor", "bad-image", "--json").json()["code"] == "bad-image"
    assert "Did you mean 'bad-image'?" in refused("doctor", "bad_image")
