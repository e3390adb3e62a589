from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from phpq.cli import _console as output
from phpq.cli._console import config_table, home
from phpq.config import RunConfig, override


def test_json_is_one_document_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": "Säger", "map": 1.5})
    assert json.loads(capsys.readouterr().out) == {"name": "Säger", "map": 1.5}
    with pytest.raises(ValueError, match="Out of range float"):
        output.print_json({"map": float("nan")})


def test_facts_are_shown_as_they_are_and_unwrapped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_facts([("run", "runs/[bold]x"), ("", "y" * 300)])
    assert capsys.readouterr().out == f"run  runs/[bold]x\n     {'y' * 300}\n"


def test_sizes_and_numbers_as_people_write_them() -> None:
    assert [output.readable_bytes(n) for n in (0, 999, 1200, 3.4e6, 5e9, 7e13)] == [
        "0 bytes",
        "999 bytes",
        "1.2 kB",
        "3.4 MB",
        "5.0 GB",
        "70.0 TB",
    ]
    shown = [output.plural(n, "image") for n in (0, 1, 1000)]
    assert shown == ["0 images", "1 image", "1,000 images"]


def test_the_first_of_many_lines_are_shown() -> None:
    assert output.few_rows("lost", ["a", "b"], 2) == [("lost", "a"), ("lost", "b")]
    assert output.few_rows("lost", ["a", "b", "c"], 1) == [("lost", "a"), ("", "... and 2 more")]


def test_bars_are_for_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with output.progress_bars() as advance:
        advance("embedding a [b]", 1, 2)
    assert capsys.readouterr() == ("", "")
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(output, "messages", lambda: terminal)
    for in_bytes in (False, True):
        with output.progress_bars(in_bytes=in_bytes) as advance:
            advance("embedding a [b]", 500, 2000)
            advance("embedding a [b]", 2000, 2000)
    assert "embedding a [b]" in stream.getvalue()
    assert "2000/2000" in stream.getvalue()
    assert "2.0/2.0 kB" in stream.getvalue()


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


def test_the_table_of_what_was_changed_is_short() -> None:
    stream = io.StringIO()
    config = override(RunConfig(), ["quantizer.kappa=3"])
    Console(file=stream, width=100).print(config_table(config, changed=True))
    assert stream.getvalue().split() == ["quantizer", "kappa=3"]
