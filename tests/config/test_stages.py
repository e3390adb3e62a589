"""Settings: what each stage refuses, and how the stages fit together."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from phpq.config import (
    DataConfig,
    LossConfig,
    MethodConfig,
    ModelConfig,
    QuantizerConfig,
    RunConfig,
    TrainingConfig,
    parse,
    with_bits,
)
from phpq.errors import ConfigError

STAGES = (DataConfig, LossConfig, MethodConfig, ModelConfig, QuantizerConfig, TrainingConfig)


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
        (DataConfig, {"holdout_classes": 1.0}, "data.holdout_classes=1.0"),
        (DataConfig, {"learned_images": "all"}, "learned_images='all' with holdout_classes=0"),
        (ModelConfig, {"levels": 0, "rho": ()}, "model.levels=0"),
        (ModelConfig, {"levels": 2, "rho": (1.0,)}, "one focus factor per level"),
        (ModelConfig, {"levels": 1, "rho": (0.5,)}, "at least 1 each (inf is max pooling)"),
        (ModelConfig, {"levels": 1, "rho": (math.nan,)}, "model.rho=[nan] is not allowed"),
        (ModelConfig, {"embedding_dim": 0}, "model.embedding_dim=0"),
        (
            ModelConfig,
            {"levels": 1, "rho": (math.inf,), "rho_mode": "input"},
            "model.rho=[inf] with rho_mode='input' is not allowed: it must be finite",
        ),
        (ModelConfig, {"blocks": (5, 2)}, "model.blocks=[5, 2] is not allowed"),
        (ModelConfig, {"blocks": (-1, 2)}, "numbers from 0, rising"),
        (ModelConfig, {"blocks": (5,)}, "model.levels=3 with blocks=[5] is not allowed"),
        (ModelConfig, {"image_size": -1}, "model.image_size=-1"),
        (ModelConfig, {"pixel_mean": (0.5, 0.5, 0.5)}, "three numbers each, or none"),
        (
            ModelConfig,
            {"pixel_mean": (0.5,) * 3, "pixel_std": (0.5, 0.0, 0.5)},
            "model.pixel_std=[0.5, 0.0, 0.5] is not allowed: it must be above 0 each",
        ),
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
        (QuantizerConfig, {"anneal_share": 0.0}, "quantizer.anneal_share=0.0"),
        (QuantizerConfig, {"anneal_share": 1.5}, "in (0, 1]"),
        (QuantizerConfig, {"nucleus_mass": 0.0}, "quantizer.nucleus_mass=0.0"),
        (QuantizerConfig, {"nucleus_mass": math.nan}, "quantizer.nucleus_mass=nan"),
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
        (
            TrainingConfig,
            {"sampler": "classes", "images_per_class": 0},
            "training.images_per_class=0 is not allowed: it must be at least 1.",
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
        assert changed.model.embedding_dim == 96
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


def test_every_field_has_a_stage_that_says_what_it_means() -> None:
    for stage in dataclasses.fields(RunConfig):
        assert stage.default_factory in STAGES
    source = Path(sys.modules[RunConfig.__module__].__file__ or "").read_text("utf-8")
    for kind in STAGES:
        assert kind.__doc__
        for field in dataclasses.fields(kind):
            assert f"    {field.name}: " in source
