"""The door of the package: two names, loaded when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import phpq.serve


def test_the_names_are_these() -> None:
    assert phpq.serve.__all__ == ["ServerSettings", "create_app"]
    for name in phpq.serve.__all__:
        assert getattr(phpq.serve, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'creat_app'"):
        _ = phpq.serve.creat_app  # type: ignore[attr-defined]


def test_a_decoder_loads_only_what_it_needs() -> None:
    code = """
import sys, phpq.serve.decode_pool
print(*sorted({'torch', 'fastapi', 'lance', 'pyarrow', 'numba', 'starlette'} & {*sys.modules}))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
