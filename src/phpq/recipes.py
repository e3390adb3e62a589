"""Resolves the settings of a run and of its parts: options in, a `RunConfig` out. No torch."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phpq.config import (
    READINGS,
    RECIPES,
    TRUNKS,
    MethodConfig,
    RunConfig,
    TrainingConfig,
    override,
    parse,
    read_toml,
    with_bits,
)
from phpq.errors import ConfigError, nearest_hint

logger = logging.getLogger(__name__)

# Drawn birds are learned from scratch by timm's smallest ResNet, without crops: such small pictures
# would lose the marks that distinguish species.
_DRAWN = (
    "data.crop_scale=1.0",
    "data.crop_ratio=1.0",
    "model.backbone=test_resnet",
    "model.embedding_dim=192",
    "loss.tau=0.25",
    "loss.gamma=0.2",
    "training.batch_size=32",
    "training.optimizer=adamw",
    "training.learning_rate=5e-3",
    "training.head_rate_factor=0.5",
    "training.weight_decay=0.05",
    "training.ema_decay=0.9",
    "training.precision=float32",
    "training.images_on_device=on",
)

# For a frozen backbone, whose features are the same in every epoch: noise in place of crops, a
# sharper classifier, fewer epochs. How they were chosen: docs/decisions/0016.
_FROZEN: dict[str, tuple[str, ...]] = {
    "head": (
        "loss.tau=0.25",
        "training.feature_noise=1.0",
        "training.epochs=40",
        "training.evaluate_every=20",
    ),
    "last": (
        "loss.tau=0.25",
        "training.epochs=12",
        "training.batch_size=64",
        "training.evaluate_every=12",
        "training.ema_decay=0.98",
    ),
}


def resolve_config(  # noqa: PLR0913  by name
    *,
    base: RunConfig | None = None,
    method: str | None = None,
    recipe: str | None = None,
    trunk: str | None = None,
    file: Path | None = None,
    weights: str | None = None,
    settings: Sequence[str] = (),
    bits: int | None = None,
) -> RunConfig:
    """Resolve the settings of a run.

    Args:
        base: Settings that all methods share on a data set; the defaults if None.
        method: Whose recipe is applied, PHPQ by default; not with a file, which names its own.
        recipe: One of `phpq.config.READINGS`: our recipe of PHPQ, or the paper's. It does not
            override what base or file change.
        trunk: One of `phpq.config.TRUNKS`, whose weights, pixel statistics and sizes override the
            file.
        file: A TOML file.
        weights: Of the backbone, unless file or trunk set them.
        settings: Texts such as "training.epochs=10", which override all of the above; the last of
            equal ones counts. `training.trainable` changes defaults of others (`_FROZEN`).
        bits: Length of a code; None leaves it to the settings.
    """
    if file and method:
        raise ConfigError(
            f"The method {method!r} and the config file {str(file)!r} contradict each other. Set "
            "method.name in the file."
        )
    if method is not None and method not in RECIPES:
        raise ConfigError(f"Unknown method {method!r}. {nearest_hint(method, RECIPES)}")
    config, texts, data = base or RunConfig(), list(settings), dict[str, Any]()
    if file:
        data = read_toml(file)
        config = parse(data)
        if "weights" in data.get("model", {}):
            weights = None
    implied = _reading(recipe, config, method)
    if trunk is not None:
        if trunk not in TRUNKS:
            raise ConfigError(f"Unknown trunk {trunk!r}. {nearest_hint(trunk, TRUNKS)}")
        implied += TRUNKS[trunk].settings
    trainable = override(config, [*implied, *texts]).training.trainable
    texts = [text for text in _FROZEN.get(trainable, ()) if not _is_set(text, data)] + texts
    if method:
        texts = [f"method.name={method}", *RECIPES[method].settings, *texts]
    texts = [*implied, *texts]
    if weights is not None:
        texts.insert(0, f"model.weights={weights}")
    config = override(config, texts)
    return config if bits is None else with_bits(config, bits)


def _reading(recipe: str | None, config: RunConfig, method: str | None) -> tuple[str, ...]:
    """Return the settings of a recipe of PHPQ, without those that a config has changed itself."""
    if recipe is None:
        return ()
    if recipe not in READINGS:
        raise ConfigError(f"Unknown recipe {recipe!r}. {nearest_hint(recipe, READINGS)}")
    name = method or config.method.name
    if name != "phpq" and READINGS[recipe]:
        raise ConfigError(
            f"The recipe {recipe!r} is one of PHPQ, not of {name!r}. Leave out the recipe or the "
            "method."
        )

    def value(source: RunConfig, text: str) -> Any:
        stage, _, field = text.partition("=")[0].partition(".")
        return getattr(getattr(source, stage), field)

    plain = RunConfig()
    return tuple(t for t in READINGS[recipe] if value(config, t) == value(plain, t))


def fit_patches(config: RunConfig) -> RunConfig:
    """Return the config with image sizes that are multiples of a transformer's patches.

    Other sizes are rounded down, with a warning. With `model.blocks` the network is built for the
    size of encoded images.
    """
    model, data = config.model, config.data
    named = re.search(r"patch(\d+)", model.backbone)
    patch = int(named[1]) if named else 1
    for name in ("crop_size", "eval_size"):
        size = getattr(data, name)
        if size % patch:
            fitting = max(patch, size - size % patch)
            logger.warning(
                "data.%s=%d is not a multiple of the %d pixels of a patch of %s: %d is used.",
                *(name, size, patch, model.backbone, fitting),
            )
            data = replace(data, **{name: fitting})
    if model.blocks:
        model = replace(model, image_size=data.eval_size)
    return replace(config, model=model, data=data)


def _is_set(text: str, data: dict[str, Any]) -> bool:
    """Tell whether the content of a file sets the field that a text assigns."""
    stage, _, name = text.partition("=")[0].partition(".")
    return name in data.get(stage, {})


def drawn_settings(side: int) -> tuple[str, ...]:
    """Return the settings for drawn birds of `side` pixels."""
    return (*(f"data.{which}_size={side}" for which in ("store", "crop", "eval")), *_DRAWN)


def default_weights(source: str) -> str:
    """Return "hub", or "none" for a source of drawn birds, which are no photographs."""
    return "none" if source.startswith("plumage:") else "hub"


def absolute_weights(weights: str) -> str:
    """Return the absolute path of a file of weights: a run may be resumed from another folder."""
    return weights if weights in ("none", "hub") else str(Path(weights).expanduser().absolute())


def classifier_config(config: RunConfig) -> RunConfig | None:
    """Return the settings of fine-tuning the backbone as a classifier; None without any.

    They do not depend on the method, so that methods can share the result.
    """
    epochs = _classifier_epochs(config)
    if not epochs:
        return None
    usual, training = TrainingConfig(), replace(config.training, epochs=epochs)
    training = replace(training, sampler=usual.sampler, images_per_class=usual.images_per_class)
    # A shallow method that is never fitted is a classifier over pooled features.
    method = MethodConfig(name="lsh", features="finetuned")
    return replace(config, method=method, training=training)


def remaining_config(config: RunConfig) -> RunConfig:
    """Return the settings of the epochs after `classifier_config`."""
    training = replace(
        config.training,
        epochs=config.training.epochs - _classifier_epochs(config),
        learning_rate=config.training.learning_rate * config.method.rate_share,
    )
    method = replace(config.method, classifier_share=0.0, rate_share=1.0)
    return replace(config, method=method, training=training)


def head_config(config: RunConfig) -> RunConfig:
    """Return the settings of the epochs in which the head learns, before the last stage does."""
    recipe = override(RunConfig(), _FROZEN["head"]).training
    training = replace(
        config.training,
        trainable="head",
        epochs=recipe.epochs // 2,
        batch_size=recipe.batch_size,
        feature_noise=recipe.feature_noise,
    )
    return replace(config, training=training)


def _classifier_epochs(config: RunConfig) -> int:
    epochs = config.training.epochs
    if config.training.trainable != "all":
        return 0  # the backbone is frozen, at least in part
    return min(epochs - 1, round(config.method.classifier_share * epochs))
