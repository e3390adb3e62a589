"""Settings: what is refused and how, and the ways in (data, TOML, assignments) and out (JSON)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpq.config import (
    DataConfig,
    LossConfig,
    ModelConfig,
    QuantizerConfig,
    RunConfig,
    TrainingConfig,
    load_toml,
    override,
    parse,
    to_dict,
    with_bits,
)
from phpq.errors import ConfigError

STAGES = (DataConfig, LossConfig, ModelConfig, QuantizerConfig, TrainingConfig)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DataConfig, {"store_size": 0}, "data.store_size=0 is not allowed: it must be at least 1."),
        (DataConfig, {"crop_scale": 0.0}, "data.crop_scale=0.0"),
        (DataConfig, {"crop_scale": 1.5}, "in (0, 1]"),
        (DataConfig, {"crop_ratio": 0.5}, "data.crop_ratio=0.5"),
        (DataConfig, {"jitter": 1.0}, "data.jitter=1.0"),
        (DataConfig, {"eval_crop": 0.0}, "data.eval_crop=0.0"),
        (DataConfig, {"holdout_per_class": -1}, "data.holdout_per_class=-1"),
        (ModelConfig, {"levels": 0, "rho": ()}, "model.levels=0"),
        (ModelConfig, {"levels": 2, "rho": (1.0,)}, "one focus factor a level"),
        (ModelConfig, {"levels": 1, "rho": (0.5,)}, "at least 1 each (inf is max pooling)"),
        (ModelConfig, {"levels": 1, "rho": (math.nan,)}, "model.rho=[nan] is not allowed"),
        (ModelConfig, {"embedding_dim": 0}, "model.embedding_dim=0"),
        (QuantizerConfig, {"num_codebooks": 0}, "quantizer.num_codebooks=0"),
        (QuantizerConfig, {"codebook_size": 100}, "a power of two from 2 to 256"),
        (QuantizerConfig, {"codebook_size": 512}, "a power of two from 2 to 256"),
        (QuantizerConfig, {"alpha": 0.0}, "quantizer.alpha=0.0"),
        (QuantizerConfig, {"kappa": 0}, "quantizer.kappa=0"),
        (
            QuantizerConfig,
            {"codebook_size": 16, "kappa": 17},
            "quantizer.kappa=17 with codebook_size=16 is not allowed: it must be from 1 to 16",
        ),
        (LossConfig, {"tau": 0.0}, "loss.tau=0.0"),
        (LossConfig, {"tau": math.nan}, "loss.tau=nan"),
        (LossConfig, {"label_smoothing": 1.0}, "loss.label_smoothing=1.0"),
        (LossConfig, {"gamma": -1.0}, "loss.gamma=-1.0"),
        (TrainingConfig, {"epochs": 0}, "training.epochs=0"),
        (TrainingConfig, {"learning_rate": 0.0}, "training.learning_rate=0.0"),
        (TrainingConfig, {"ema_decay": 1.0}, "training.ema_decay=1.0"),
        (TrainingConfig, {"final_rate": 1.1}, "training.final_rate=1.1"),
        (TrainingConfig, {"seed": -1}, "training.seed=-1"),
        (
            TrainingConfig,
            {"sampler": "classes", "batch_size": 10, "images_per_class": 4},
            "a divisor of the batch size",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(
    kind: type, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert message in str(caught.value)


def test_all_faults_of_a_stage_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        QuantizerConfig(num_codebooks=0, codebook_size=3, alpha=-1.0, kappa=0)
    assert len(str(caught.value).splitlines()) == 4


def test_dimension_and_codebooks_must_fit() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"model": {"embedding_dim": 100}, "quantizer": {"num_codebooks": 7}})
    message = str(caught.value)
    assert "model.embedding_dim=100 is not divisible by quantizer.num_codebooks=7" in message
    assert "[1, 2, 4, 5, 10, 20, 25, 50]" in message
    assert "set model.embedding_dim=98" in message
    with pytest.raises(ConfigError, match=r"set model\.embedding_dim=8"):
        parse({"model": {"embedding_dim": 4}, "quantizer": {"num_codebooks": 8}})


@pytest.mark.parametrize(("books", "size", "bits"), [(4, 256, 32), (6, 16, 24), (3, 2, 3)])
def test_bits_are_books_times_log2_of_their_size(books: int, size: int, bits: int) -> None:
    config = QuantizerConfig(num_codebooks=books, codebook_size=size, kappa=1)
    assert config.bits == bits


def test_asking_for_bits_sets_the_codebooks_only() -> None:
    base = parse({"model": {"embedding_dim": 96}, "quantizer": {"codebook_size": 256}})
    for bits in (8, 16, 32, 48, 64):
        changed = with_bits(base, bits)
        assert changed.quantizer.bits == bits
        assert changed.sub_dim * changed.quantizer.num_codebooks == 96
        restored = dataclasses.replace(changed, quantizer=base.quantizer)
        assert restored == base


@pytest.mark.parametrize("bits", [-8, 0, 4, 12, 33])
def test_bits_that_are_no_multiple_are_refused(bits: int) -> None:
    message = rf"bits={bits} is not a multiple of 8 .*Use 16, 32, 48 or 64\."
    with pytest.raises(ConfigError, match=message):
        with_bits(parse({"quantizer": {"codebook_size": 256}}), bits)


def test_bits_that_do_not_divide_the_dimension_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"not divisible by quantizer\.num_codebooks=5"):
        with_bits(parse({"model": {"embedding_dim": 64}, "quantizer": {"codebook_size": 256}}), 40)


def test_nothing_given_is_the_default() -> None:
    assert parse({}) == RunConfig() == override(RunConfig(), [])


def test_every_field_has_a_stage_that_says_what_it_means() -> None:
    for stage in dataclasses.fields(RunConfig):
        assert stage.default_factory in STAGES
    source = Path(sys.modules[RunConfig.__module__].__file__ or "").read_text("utf-8")
    for kind in STAGES:
        assert kind.__doc__
        for field in dataclasses.fields(kind):
            assert f"    {field.name}: " in source


FULL = {
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
    config = load_toml(path)
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
        load_toml(path)


def test_a_missing_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the config '.*gone\.toml'"):
        load_toml(tmp_path / "gone.toml")


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


def test_settings_need_no_torch() -> None:
    code = "import sys, phpq.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
