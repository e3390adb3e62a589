"""Every method has a recipe that builds a config, and a name in the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phpq.config import RunConfig, override
from phpq.errors import ConfigError
from phpq.recipes import RECIPES, classifier_config, recipe_config, remaining_config


def test_names_and_titles_are_their_own() -> None:
    assert all(name == recipe.name for name, recipe in RECIPES.items())
    assert len({recipe.title for recipe in RECIPES.values()}) == len(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_methods_share_data_backbone_and_budget(name: str) -> None:
    config, ours = recipe_config(name), RunConfig()
    assert config.method.name == name
    assert (config.data, config.model) == (ours.data, ours.model)
    assert config.training.epochs == ours.training.epochs
    assert config.training.learning_rate == ours.training.learning_rate


def test_phpq_is_the_default() -> None:
    assert recipe_config("phpq") == RunConfig()


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown method 'hashnett'.*Did you mean 'hashnet'"):
        recipe_config("hashnett")
    with pytest.raises(ConfigError, match=r"method.name='hashnett' is not .*mean 'hashnet'"):
        override(RunConfig(), ["method.name=hashnett"])


def test_reconstructions_say_so() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.reconstruction} >= {
        "cfh",
        "fph",
        "srlh",
    }


def test_deep_methods_share_one_classifier_and_keep_the_budget() -> None:
    ours = recipe_config("phpq")
    assert classifier_config(ours) is None
    assert remaining_config(ours) == ours
    seen = []
    for name, recipe in RECIPES.items():
        config = recipe_config(name)
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
    config = override(recipe_config("dth"), ["training.epochs=1"])
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
