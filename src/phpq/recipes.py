"""From a method to the settings of its runs, and of the two parts of such a run. No torch."""

from __future__ import annotations

from dataclasses import replace

from phpq.config import RECIPES, MethodConfig, RunConfig, TrainingConfig, override
from phpq.errors import ConfigError, nearest_hint

__all__ = ["RECIPES", "classifier_config", "recipe_config", "remaining_config"]


def recipe_config(method: str) -> RunConfig:
    """Return the settings of a run of a method.

    Args:
        method: One of `RECIPES`.

    Raises:
        ConfigError: If there is no such method; the message names the nearest.
    """
    if method not in RECIPES:
        raise ConfigError(f"Unknown method {method!r}. {nearest_hint(method, RECIPES)}")
    return override(RunConfig(), [f"method.name={method}", *RECIPES[method].settings])


def classifier_config(config: RunConfig) -> RunConfig | None:
    """Return the settings of the epochs in which only the backbone learns; None without any.

    They do not depend on the method, so that methods can share what was learned.
    """
    epochs = _classifier_epochs(config)
    if not epochs:
        return None
    usual, asked = TrainingConfig(), config.training
    training = replace(
        asked,
        epochs=epochs,
        sampler=usual.sampler,
        images_per_class=usual.images_per_class,
    )
    # A shallow method that is never fitted is a classifier over pooled features.
    method = MethodConfig(name="lsh", features="finetuned")
    return replace(config, method=method, training=training)


def remaining_config(config: RunConfig) -> RunConfig:
    """Return the settings of the epochs in which the method itself learns."""
    training = replace(
        config.training,
        epochs=config.training.epochs - _classifier_epochs(config),
        learning_rate=config.training.learning_rate * config.method.rate_share,
    )
    method = replace(config.method, classifier_share=0.0, rate_share=1.0)
    return replace(config, method=method, training=training)


def _classifier_epochs(config: RunConfig) -> int:
    epochs = config.training.epochs
    return min(epochs - 1, round(config.method.classifier_share * epochs))
