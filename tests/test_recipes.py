"""Every method has a recipe that builds a config, and a name in the tables."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from phpq.config import RECIPES, RunConfig, override, to_dict
from phpq.config.methods import AS_PRINTED
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


# The words of the paper (arXiv 2109.05206, section "Implementation Details" unless another is
# named) and the settings that they give, by group of the expression.
PRINTED = {
    r"a ResNet-(\d+)": ("model.backbone",),
    r"from the i-th stage of a ResNet-18 as X, i in \{(2,3,4)\}": ("model.levels",),
    r"maximum training epoch is set to be (\d+) with batch size (\d+)": (
        "training.epochs",
        "training.batch_size",
    ),
    r"We adopt (\w+) as the optimizer": ("training.optimizer",),
    r"initial learning rate is set to be ([\d.]+)\.": ("training.learning_rate",),
    r"rho_s2=(\d), rho_s3=(\d), and rho_s4=(\d)": ("model.rho",),
    r"embedding dimension, D=(\d+)": ("model.embedding_dim",),
    r"size of a sub-codebook, K=(\d+)": ("quantizer.codebook_size",),
    r"scaling factor for soft quantization, alpha=(\d+)": ("quantizer.alpha",),
    r"tau=([\d.]+) for CUB-200-2011": ("loss.tau",),
    r"weight parameters for L_PHPQ, gamma=(\d)": ("loss.gamma",),
    r"model performs best under kappa=(\d)": ("quantizer.kappa",),
}
TEXT = """
We adopt a ResNet-18 pre-trained on ImageNet as the backbone. The maximum training epoch is set to
be 70 with batch size 64. We adopt Adam as the optimizer. The initial learning rate is set to be
0.0001. (i) The focus factor of GSP, rho_s2=3, rho_s3=2, and rho_s4=1. (ii) The embedding dimension,
D=1536. (iii) The size of a sub-codebook, K=256, while the number of codebook M varies in
{2, 4, 6, 8}. (iv) The scaling factor for soft quantization, alpha=16. (v) The temperature parameter
for L_SR-CEL, tau=0.50 for CUB-200-2011, and tau=0.25 for Stanford Dogs. (vi) The weight parameters
for L_PHPQ, gamma=1. Hybrid Pooling: we first extract the feature maps from the i-th stage of a
ResNet-18 as X, i in {2,3,4}, respectively. Component Analysis: the model performs best under
kappa=5.
"""


def test_the_paper_as_printed_has_the_numbers_of_its_text() -> None:
    config, words = resolve_config(recipe="paper"), " ".join(TEXT.split())
    for pattern, paths in PRINTED.items():
        found = re.search(pattern, words)
        assert found, pattern
        values = [
            getattr(getattr(config, stage), name)
            for stage, _, name in (path.partition(".") for path in paths)
        ]
        groups = found.groups()
        if paths == ("model.rho",):
            assert values[0] == tuple(map(float, groups))
        elif paths == ("model.levels",):
            assert values[0] == len(groups[0].split(","))
        elif paths == ("model.backbone",):
            assert values[0] == f"resnet{groups[0]}"
        elif paths == ("training.optimizer",):
            assert values[0] == groups[0].lower()
        else:
            assert values == [float(group) for group in groups], pattern


def test_the_paper_as_printed_has_nothing_that_is_ours() -> None:
    config = resolve_config(recipe="paper")
    assert config.loss.embedding_weight == 0  # L = SR-CEL + gamma CL
    assert config.loss.label_smoothing == 0
    assert config.loss.positive_mean == "paper"  # 1 / |B_c|^2
    assert config.model.embedding_norm == "none"
    assert config.model.pooling == "paper"  # 1 / HW outside the root
    assert config.quantizer.init == "xavier"
    assert config.training.ema_decay == 0
    assert config.training.head_rate_factor == 1
    assert config.data.eval_size == config.data.crop_size
    # Every line of it is a setting, named once, and nothing but these differs from ours.
    paths = [text.partition("=")[0] for text in AS_PRINTED]
    assert len(set(paths)) == len(paths)
    ours, theirs = to_dict(RunConfig()), to_dict(config)
    differing = {f"{s}.{n}" for s in ours for n in ours[s] if ours[s][n] != theirs[s][n]}
    assert differing <= set(paths)
    assert len(differing) == 12


def test_data_set_file_and_options_count_more_than_a_reading(tmp_path: Path) -> None:
    dogs = override(RunConfig(), ["loss.tau=0.25"])
    assert resolve_config(base=dogs, recipe="paper").loss.tau == 0.25
    (tmp_path / "a.toml").write_text("[quantizer]\nalpha = 8\n")
    config = resolve_config(
        file=tmp_path / "a.toml", recipe="paper", settings=["training.epochs=3"]
    )
    assert (config.quantizer.alpha, config.quantizer.init) == (8, "xavier")
    assert config.training.epochs == 3
    assert resolve_config(recipe="ours") == RunConfig()


def test_large_is_ours_with_larger_views_and_nothing_else() -> None:
    plain, config = RunConfig(), resolve_config(recipe="large")
    assert config.data.crop_size > plain.data.crop_size
    assert config.data.eval_size > plain.data.eval_size
    crop, seen = plain.data.crop_size, plain.data.eval_size
    assert replace(config, data=replace(config.data, crop_size=crop, eval_size=seen)) == plain
    assert resolve_config(recipe="large", settings=["data.eval_size=320"]).data.eval_size == 320


def test_a_reading_is_known_and_of_phpq() -> None:
    with pytest.raises(ConfigError, match=r"Unknown recipe 'papre'.*Did you mean 'paper'"):
        resolve_config(recipe="papre")
    with pytest.raises(ConfigError, match="'paper' is one of PHPQ, not of 'dsh'"):
        resolve_config(recipe="paper", method="dsh")
