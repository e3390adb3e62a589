from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import provenance

    return provenance


def test_it_says_what_ran_and_where_but_no_folder(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["/home/me/phpq/benchmarks/cub200.py", "speed", "--data", "cub200:/home/me/birds"]
    monkeypatch.setattr(sys, "argv", [*words, "--weights", "resnet18=/home/me/r18.safetensors"])
    options = Namespace(weights=["resnet18=/home/me/r18.safetensors"], out=Path("a/b/c.json"))
    made = module.provenance(options)
    assert "home" not in json.dumps(made)
    assert made["command"] == (
        "python cub200.py speed --data cub200:birds --weights resnet18=r18.safetensors"
    )
    assert made["settings"] == {"weights": ["resnet18=r18.safetensors"], "out": "a/b/c.json"}
    assert made["machine"]["cpu_cores"]


def test_a_given_commit_counts(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPQ_COMMIT", "abc")
    assert module.provenance(Namespace())["commit"] == "abc"
    assert module.provenance(Namespace(commit="def"))["commit"] == "def"
