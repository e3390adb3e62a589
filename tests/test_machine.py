from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

from phpq import machine
from phpq.errors import EXTRAS


def test_memory_is_told() -> None:
    assert machine.available_memory() > 1e6
    assert (machine.total_memory() or 0) > machine.available_memory() / 2


def test_memory_as_windows_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(place: object) -> int:
        place._obj.value = 8_000_000  # type: ignore[attr-defined]
        return 1

    kernel = SimpleNamespace(GetPhysicallyInstalledSystemMemory=installed)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert machine.total_memory() == 8_192_000_000


def test_memory_that_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", refuse)
    assert machine.total_memory() is None


def test_what_needs_a_package_names_one_that_an_extra_brings() -> None:
    assert set(machine._TASKS) <= set(EXTRAS)


def test_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    content = machine.describe_machine(home=tmp_path / "no" / "such")
    assert content["caches"][0]["bytes"] == 0
    assert content["caches"][0]["free_bytes"] > 0


def test_code_that_git_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.code_commit() == ""
