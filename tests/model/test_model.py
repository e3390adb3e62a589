from __future__ import annotations

import subprocess
import sys

import pytest

import phpq.model


@pytest.mark.parametrize("name", phpq.model.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(phpq.model, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Modell"):
        _ = phpq.model.Modell  # type: ignore[attr-defined]


def test_torch_waits_until_a_name_needs_it() -> None:
    code = (
        "import sys, phpq.model, phpq.model.onnx_model; early = 'torch' in sys.modules; "
        "phpq.model.Network; sys.exit(early or 'torch' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
