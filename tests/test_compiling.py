"""Compiled code is kept by the content of its source, wherever the package lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLEE = "from phpq.compiling import compiled\n\n@compiled\ndef one():\n    return 1\n"
CALLER = """
from loops.callee import one
from phpq.compiling import compiled

@compiled
def two():
    return 2 * one()

print(two(), sum(two.stats.cache_hits.values()))
"""


def call(folder: Path, **environment: str) -> list[int]:
    """Return what `two` gives in a fresh process, and how often it came from the cache."""
    done = subprocess.run(
        [sys.executable, "-c", "import loops.caller"],
        cwd=folder,
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return [int(word) for word in done.stdout.split()]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "first" / "loops").mkdir(parents=True)
    (tmp_path / "first" / "loops" / "callee.py").write_text(CALLEE)
    (tmp_path / "first" / "loops" / "caller.py").write_text(CALLER)
    return tmp_path / "first"


def test_another_copy_of_the_package_compiles_nothing(package: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert call(package, XDG_CACHE_HOME=cache) == [2, 0]
    shutil.copytree(package, tmp_path / "second", ignore=shutil.ignore_patterns("__pycache__"))
    assert call(tmp_path / "second", XDG_CACHE_HOME=cache) == [2, 1]
    assert not list(package.rglob("*.nbi"))


def test_a_function_that_changes_is_compiled_anew_with_those_that_call_it(
    package: Path, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert call(package, XDG_CACHE_HOME=cache) == [2, 0]
    # Of another length: Python itself takes a file of the same second and size for unchanged.
    (package / "loops" / "callee.py").write_text(CALLEE.replace("return 1", "return 80"))
    assert call(package, XDG_CACHE_HOME=cache) == [160, 0]


def test_without_a_cache_of_the_user_it_is_kept_beside_the_source(
    package: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    assert call(package, XDG_CACHE_HOME=str(taken)) == [2, 0]
    assert call(package, XDG_CACHE_HOME=str(taken)) == [2, 1]


def test_the_users_own_wish_comes_first(package: Path, tmp_path: Path) -> None:
    wish = tmp_path / "wish"
    assert call(package, NUMBA_CACHE_DIR=str(wish), XDG_CACHE_HOME=str(tmp_path / "no")) == [2, 0]
    assert list(wish.rglob("*.nbi"))
    assert not (tmp_path / "no").exists()
