"""Every method has a recipe that builds a config, and a name in the tables."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from phpq.config import RECIPES, RunConfig, override
from phpq.errors import ConfigError
from phpq.recipes import (
    absolute_weights,
    classifier_config,
    default_weights,
    drawn_settings,
    fit_patches,
    head_config,
    remaining_config,
    resolve_config,
)


@pytest.mark.parametrize("name", RECIPES)
def test_methods_share_data_backbone_and_budget(name: str) -> None:
    config, ours = resolve_config(method=name), RunConfig()
    assert config.method.name == name
    assert (config.data, config.model) == (ours.data, ours.model)
    assert config.training.epochs == ours.training.epochs
    assert config.training.learning_rate == ours.training.learning_rate


def test_phpq_is_the_default() -> None:
    assert resolve_config(method="phpq") == RunConfig()


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown method 'hashnett'.*Did you mean 'hashnet'"):
        resolve_config(method="hashnett")
    with pytest.raises(ConfigError, match=r"method.name='hashnett' is not .*mean 'hashnet'"):
        override(RunConfig(), ["method.name=hashnett"])


def test_reconstructions_say_so() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.reconstruction} >= {
        "cfh",
        "fph",
        "srlh",
    }


def test_deep_methods_share_one_classifier_and_keep_the_budget() -> None:
    ours = resolve_config(method="phpq")
    assert classifier_config(ours) is None
    assert remaining_config(ours) == ours
    seen = []
    for name, recipe in RECIPES.items():
        config = resolve_config(method=name)
        first = classifier_config(config)
        if recipe.kind == "shallow" or name == "phpq":
            assert first is None
            continue
        assert first is not None
        rest = remaining_config(config)
        assert first.training.epochs + rest.training.epochs == config.training.epochs
        assert rest.method.classifier_share == 0
        seen.append(
            (first.training.epochs, replace(first, training=replace(first.training, epochs=1)))
        )
    # One training serves all that give it the same epochs; nothing else of a method shows in it.
    assert all(first == seen[0][1] for _, first in seen)
    assert len({epochs for epochs, _ in seen}) == 2


def test_a_single_epoch_is_left_to_the_method() -> None:
    config = override(resolve_config(method="dth"), ["training.epochs=1"])
    assert classifier_config(config) is None
    assert remaining_config(config).training.epochs == 1


def test_a_share_of_the_rate_is_for_the_epochs_of_the_method() -> None:
    settings = ["method.classifier_share=0.5", "method.rate_share=0.25", "training.epochs=10"]
    config = override(RunConfig(), ["method.name=pqn", "training.learning_rate=0.008", *settings])
    first, rest = classifier_config(config), remaining_config(config)
    assert first is not None
    assert first.training.learning_rate == 0.008
    assert rest.training.learning_rate == pytest.approx(0.002)
    assert remaining_config(rest) == rest  # it is taken once
    with pytest.raises(ConfigError, match=r"rate_share=0.* must be above 0"):
        override(RunConfig(), ["method.rate_share=0"])


def test_file_then_options_then_bits(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[training]\nepochs = 3\nseed = 5\n[quantizer]\nnum_codebooks = 8\n")
    config = resolve_config(file=file, settings=["training.epochs=4"])
    assert (config.training.epochs, config.training.seed, config.quantizer.bits) == (4, 5, 64)
    assert resolve_config(file=file, bits=16).quantizer.bits == 16
    assert resolve_config(weights="none") == RunConfig()


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
    config = resolve_config(file=file, settings=assignments, weights="hub")
    assert config.model.weights == expected


def test_a_file_and_a_method_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'itq' and the config file 'a.toml' contradict"):
        resolve_config(file=Path("a.toml"), method="itq")


def test_what_was_asked_for_counts_more_than_the_recipe_and_that_more_than_the_base() -> None:
    base = override(RunConfig(), ["training.batch_size=32", "training.epochs=5"])
    config = resolve_config(base=base, method="dpsh", settings=["training.images_per_class=8"])
    assert (config.training.epochs, config.training.batch_size) == (5, 64)
    assert (config.method.name, config.training.images_per_class) == ("dpsh", 8)


def test_photographs_start_from_the_hub_and_drawings_from_nothing() -> None:
    assert default_weights("/data/birds") == "hub"
    assert default_weights("plumage:species=2") == "none"
    drawn = resolve_config(settings=drawn_settings(48))
    assert (drawn.data.store_size, drawn.data.crop_size, drawn.data.eval_size) == (48, 48, 48)


def test_files_of_weights_are_kept_by_their_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [absolute_weights(word) for word in ("none", "hub")] == ["none", "hub"]
    assert absolute_weights("w.pth") == str(tmp_path / "w.pth")


def test_a_frozen_backbone_brings_its_settings_and_what_is_named_counts_more(
    tmp_path: Path,
) -> None:
    assert resolve_config(settings=["training.trainable=all"]) == RunConfig()
    head = resolve_config(settings=["training.trainable=head"])
    assert head.training.feature_noise > 0
    assert head.training.epochs < RunConfig().training.epochs
    named = resolve_config(settings=["training.epochs=7", "training.trainable=head"])
    assert named == override(head, ["training.epochs=7"])
    file = tmp_path / "run.toml"
    file.write_text('[training]\ntrainable = "head"\nfeature_noise = 0.0\n', "utf-8")
    assert resolve_config(file=file) == override(head, ["training.feature_noise=0.0"])
    last = resolve_config(settings=["training.trainable=last", "loss.tau=0.7"])
    first = head_config(last)
    assert first.training.trainable == "head"
    assert first.training.feature_noise == head.training.feature_noise
    assert first.loss == last.loss
    # There is nothing, or too little, of the backbone to be learned by a classifier before.
    assert (
        classifier_config(resolve_config(method="dth", settings=["training.trainable=head"]))
        is None
    )


def test_a_trunk_brings_its_settings_and_what_is_asked_for_comes_after() -> None:
    asked = ["model.weights=w.safetensors", "data.eval_size=518"]
    config = resolve_config(trunk="siglip2-base", method="dpsh", weights="none", settings=asked)
    assert config.model.backbone == "vit_base_patch16_siglip_224.v2_webli"
    assert (config.model.pixel_mean, config.model.pixel_std) == ((0.5,) * 3, (0.5,) * 3)
    assert (config.data.crop_size, config.data.eval_size) == (224, 518)
    assert config.model.weights == "w.safetensors"
    assert config.method.name == "dpsh"
    assert resolve_config(trunk="clip-base", weights="none").model.weights == "hub"
    with pytest.raises(ConfigError, match=r"Unknown trunk 'dino2-small'.*mean 'dinov2-small'"):
        resolve_config(trunk="dino2-small")


def test_the_head_learns_as_fast_with_a_trunk_as_without() -> None:
    usual, ours = RunConfig().training, resolve_config(trunk="dinov2-small").training
    rate = usual.learning_rate * usual.head_rate_factor
    assert ours.learning_rate * ours.head_rate_factor == pytest.approx(rate)


def test_sizes_are_rounded_to_patches_and_the_user_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fits = fit_patches(resolve_config(trunk="dinov2-small"))
    assert fits.model.image_size == fits.data.eval_size == 224
    assert not caplog.records
    asked = override(fits, ["data.eval_size=300", "data.crop_size=8"])
    with caplog.at_level(logging.WARNING):
        fitted = fit_patches(asked)
    assert (fitted.data.crop_size, fitted.data.eval_size) == (14, 294)
    assert fitted.model.image_size == 294
    assert "data.eval_size=300 is not a multiple of the 14 pixels" in caplog.text
    assert "294 is used" in caplog.text
    assert fit_patches(RunConfig()) == RunConfig()
    by_name = override(RunConfig(), ["model.backbone=vit_small_patch14_dinov2"])
    assert fit_patches(by_name).data.eval_size == 280
