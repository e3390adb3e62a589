"""The ways into the settings (data, TOML, assignments) and out (JSON)."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpq.config import RunConfig, override, parse, read_toml, to_dict
from phpq.errors import ConfigError

FULL: dict[str, dict[str, Any]] = {
    "method": {"name": "orthohash", "options": {"scale": 3}},
    "data": {"crop_size": 48, "fit": "crop", "flip": False, "jitter": 0.25},
    "model": {"levels": 3, "rho": [3, 2, "inf"], "weights": "a,b.pth", "embedding_dim": 64},
    "quantizer": {"num_codebooks": 8, "codebook_size": 16, "kappa": 16},
    "loss": {"gamma": 0, "positive_mean": "paper"},
    "training": {"epochs": 3.0, "warmup_epochs": 2, "sampler": "classes", "batch_size": 64},
}


def test_plain_data_is_typed_by_the_fields() -> None:
    config = parse(FULL)
    assert config.model.rho == (3.0, 2.0, math.inf)
    assert all(isinstance(value, float) for value in config.model.rho)
    assert isinstance(config.training.epochs, int)
    assert isinstance(config.training.warmup_epochs, float)
    assert isinstance(config.loss.gamma, float)
    assert config.data.flip is False


def test_json_brings_back_the_same_config() -> None:
    for config in (RunConfig(), parse(FULL)):
        text = json.dumps(to_dict(config), allow_nan=False)  # strict JSON, infinity included
        assert parse(json.loads(text)) == config


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"modle": {}}, "Unknown option 'modle'. Known: "),
        ({"modle": {}}, "Did you mean 'model'?"),
        ({"quantizer": {"kapa": 3}}, "Unknown option 'quantizer.kapa'"),
        ({"quantizer": {"kapa": 3}}, "Did you mean 'kappa'?"),
        ({"model": 3}, "model=3 must be a table of options."),
        ({"model": {"pooling": "gme"}}, "model.pooling='gme' is not allowed. Known: gem, paper."),
        ({"model": {"rho_mode": "image"}}, "Known: fixed, input."),
        ({"quantizer": {"kappa_mode": "falling"}}, "Known: fixed, anneal, nucleus."),
        ({"method": {"options": 3}}, "method.options=3 must be a table of numbers."),
        (
            {"method": {"options": {"scale": "x"}}},
            "method.options.scale='x' must be of type float.",
        ),
        ({"training": {"epochs": "ten"}}, "training.epochs='ten' must be of type int."),
        ({"training": {"epochs": 2.5}}, "training.epochs=2.5 must be of type int."),
        ({"training": {"epochs": True}}, "training.epochs=True must be of type int."),
        ({"training": {"epochs": math.inf}}, "training.epochs=inf must be of type int."),
        ({"loss": {"tau": False}}, "loss.tau=False must be of type float."),
        ({"loss": {"tau": None}}, "loss.tau=None must be of type float."),
        ({"data": {"flip": 1}}, "data.flip=1 must be of type bool."),
        ({"model": {"backbone": 18}}, "model.backbone=18 must be of type str."),
        ({"model": {"rho": ["big", 2, 1]}}, "model.rho='big' must be of type float."),
        ({"model": {"pooling": ["gem"]}}, "model.pooling=['gem'] is not allowed."),
    ],
)
def test_data_that_cannot_be_read_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert message in str(caught.value)


def test_faults_of_all_stages_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"model": {"x": 1}, "loss": {"tau": -1.0}, "training": {"epochs": "a"}, "y": 1})
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for part in ("'model.x'", "loss.tau=-1.0", "training.epochs='a'", "'y'"):
        assert sum(part in line for line in lines) == 1


def test_toml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "birds.toml"
    text = '[model]\nlevels = 3\nrho = [2, 1.5, inf]\n[data]\nfit = "crop"\n'
    path.write_text(text, "utf-8")
    config = parse(read_toml(path))
    assert config.model.rho == (2.0, 1.5, math.inf)
    assert config.data.fit == "crop"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[model\n", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"[training]\nepoch = 3\n", r"Unknown option 'training\.epoch'"),
    ],
)
def test_bad_toml_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "birds.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        parse(read_toml(path))


def test_a_missing_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the config '.*gone\.toml'"):
        read_toml(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("assignment", "stage", "field", "value"),
    [
        ("training.epochs=3", "training", "epochs", 3),
        (" training.epochs = 3 ", "training", "epochs", 3),
        ("training.learning_rate=3e-4", "training", "learning_rate", 3e-4),
        ("loss.gamma=2", "loss", "gamma", 2.0),
        ("data.flip=False", "data", "flip", False),
        ("data.flip=true", "data", "flip", True),
        ("model.rho=3,2,inf", "model", "rho", (3.0, 2.0, math.inf)),
        ("model.rho=[3, 2, 1]", "model", "rho", (3.0, 2.0, 1.0)),
        ("model.pooling=paper", "model", "pooling", "paper"),
        ("method.options.margin=1", "method", "options", {"scale": 3.0, "margin": 1.0}),
        ("model.weights=runs/a=b,c inf.pth", "model", "weights", "runs/a=b,c inf.pth"),
    ],
)
def test_assignments_are_typed_by_their_field(
    assignment: str, stage: str, field: str, value: object
) -> None:
    changed = override(parse(FULL), [assignment])
    got = getattr(getattr(changed, stage), field)
    assert got == value
    assert type(got) is type(value)


def test_later_assignments_win_and_others_stay() -> None:
    changed = override(parse(FULL), ["training.seed=1", "training.seed=2"])
    assert changed.training.seed == 2
    seed = parse(FULL).training.seed
    assert override(changed, [f"training.seed={seed}"]) == parse(FULL)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.epochs", "is not of the form stage.field=value"),
        ("epochs=3", "is not of the form stage.field=value"),
        ("training.epoch=3", "Did you mean 'epochs'?"),
        ("trainin.epochs=3", "Unknown option 'trainin'"),
        ("training.epochs=", "must be of type int"),
        ("training.epochs=0", "training.epochs=0 is not allowed"),
    ],
)
def test_bad_assignments_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RunConfig(), [assignment])
    assert message in str(caught.value)


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=4)))
def test_any_other_data_is_a_config_error_or_a_config(data: dict[str, Any]) -> None:
    for nested in (data, {"model": data}, {"training": data}):
        with contextlib.suppress(ConfigError):
            assert isinstance(parse(nested), RunConfig)


def test_nothing_given_is_the_default() -> None:
    assert parse({}) == RunConfig() == override(RunConfig(), [])


def test_settings_need_no_torch() -> None:
    code = "import sys, phpq.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
