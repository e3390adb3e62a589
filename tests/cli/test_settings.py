from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from phpq.cli.settings import config_table, home
from phpq.config import RunConfig, override


def test_home_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPQ_HOME", "/data/phpq")
    assert home() == Path("/data/phpq")
    monkeypatch.setenv("PHPQ_HOME", "")
    assert home() is None


def test_the_table_shows_every_setting() -> None:
    stream = io.StringIO()
    config = override(RunConfig(), ["model.rho=inf,2,1"])
    Console(file=stream, width=100).print(config_table(config))
    shown = stream.getvalue()
    assert "rho=inf,2,1" in shown
    assert "crop_ratio=1.33333 " in shown
    for stage in ("data", "model", "quantizer", "loss", "training"):
        assert stage in shown
