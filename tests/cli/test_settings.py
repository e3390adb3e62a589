from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from phpq.cli.settings import build_config, config_table, home
from phpq.config import RunConfig


def test_home_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPQ_HOME", "/data/phpq")
    assert home() == Path("/data/phpq")
    monkeypatch.setenv("PHPQ_HOME", "")
    assert home() is None


def test_file_then_options_then_bits(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[training]\nepochs = 3\nseed = 5\n[quantizer]\nnum_codebooks = 8\n")
    config = build_config(file, ["training.epochs=4"], bits=None, weights="none")
    assert (config.training.epochs, config.training.seed, config.quantizer.bits) == (4, 5, 64)
    assert build_config(file, [], bits=16, weights="none").quantizer.bits == 16
    assert build_config(None, [], bits=None, weights="none") == RunConfig()


@pytest.mark.parametrize(
    ("text", "assignments", "expected"),
    [
        ("", [], "hub"),
        ("[training]\nepochs = 3\n", [], "hub"),
        ("[model]\nweights = 'none'\n", [], "none"),
        ("", ["model.weights=a.pth"], "a.pth"),
        ("[model]\nweights = 'none'\n", ["model.weights=a.pth"], "a.pth"),
    ],
)
def test_the_start_of_the_backbone_is_a_default_only(
    tmp_path: Path, text: str, assignments: list[str], expected: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    config = build_config(file, assignments, bits=None, weights="hub")
    assert config.model.weights == expected


def test_the_table_shows_every_setting() -> None:
    stream = io.StringIO()
    config = build_config(None, ["model.rho=inf,2,1"], bits=None, weights="none")
    Console(file=stream, width=100).print(config_table(config))
    shown = stream.getvalue()
    assert "rho=inf,2,1" in shown
    assert "crop_ratio=1.33333 " in shown
    for stage in ("data", "model", "quantizer", "loss", "training"):
        assert stage in shown
