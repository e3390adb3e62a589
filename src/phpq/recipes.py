"""What is known of each method: its name in tables, its settings, where they come from. No torch.

All methods share the data, the backbone and the epochs of PHPQ, so that a table compares methods
and not budgets. A recipe holds what a method needs besides: batches of several images a class for
losses over pairs, for instance. Deep methods other than PHPQ spend the first half of their epochs
(CFH a third) on fine-tuning the backbone as a classifier, since in a budget that is enough for PHPQ
their losses hardly begin to learn from ImageNet weights; such a training serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from phpq.config import MethodConfig, MethodName, RunConfig, TrainingConfig, override
from phpq.errors import ConfigError, nearest_hint

Kind = Literal["shallow", "deep", "fine-grained", "later"]

# Half the batch is twice the steps for the same images.
_FINE_TUNED = ("method.classifier_share=0.5", "training.batch_size=64")
_BY_CLASSES = (*_FINE_TUNED, "training.sampler=classes", "training.images_per_class=4")
# Beside each: MAP on five held-out training images a class of CUB, 30 epochs, for what it was.
_CFH = ("method.classifier_share=0.33",)  # 32 bits: 68.7 for 66.0
_DSH = ("method.options.similar_share=0.1",)  # 16 and 48 bits: 37.5 for 32.9, 55.8 for 46.7
_PQN = ("method.rate_share=0.25", "method.options.scale=80")  # 72.3 for 59.4, 71.3 for 60.2
_SRLH = ("method.options.triplet=0.3", "method.options.smoothing=0")  # 52.7 for 47.1, 67.7 for 64.9


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the comparison.

    Attributes:
        name: As in `method.name`.
        title: As in the paper's tables.
        kind: Group in the table: shallow, deep, fine-grained, or later than the paper.
        settings: Texts such as "training.sampler=classes".
        reconstruction: Why it is our reconstruction; empty where public text or code was followed.
        learned_database: Whether it also learns codes of the gallery from its labels.
    """

    name: MethodName
    title: str
    kind: Kind
    settings: tuple[str, ...] = field(default=())
    reconstruction: str = ""
    learned_database: bool = False


_NOT_PUBLIC = "the full text or code is not public; built from the abstract"

_FROM_MEMORY = "its loss is quoted from memory, its settings ours"

_LIGHTER = "ResNet-18 for ResNet-50, and a light block for each part"

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("lsh", "LSH", "shallow"),
        Recipe("sh", "SH", "shallow"),
        Recipe("pq", "PQ", "shallow"),
        Recipe("itq", "ITQ", "shallow"),
        Recipe("opq", "OPQ", "shallow"),
        Recipe("dpsh", "DPSH", "deep", _BY_CLASSES),
        Recipe("dth", "DTH", "deep", _BY_CLASSES),
        Recipe("dsh", "DSH", "deep", (*_BY_CLASSES, *_DSH)),
        Recipe("hashnet", "HashNet", "deep", _BY_CLASSES),
        Recipe("adsh", "ADSH", "deep", _FINE_TUNED, learned_database=True),
        Recipe("pqn", "PQN", "deep", (*_BY_CLASSES, *_PQN), _FROM_MEMORY),
        Recipe("fph", "FPH", "fine-grained", _BY_CLASSES, _NOT_PUBLIC),
        Recipe("srlh", "SRLH", "fine-grained", (*_BY_CLASSES, *_SRLH), _NOT_PUBLIC),
        Recipe("exchnet", "ExchNet", "fine-grained", _FINE_TUNED, _LIGHTER, learned_database=True),
        Recipe("cfh", "CFH", "fine-grained", (*_BY_CLASSES, *_CFH), _NOT_PUBLIC),
        Recipe("orthohash", "OrthoHash", "later", _FINE_TUNED),
        Recipe("csq", "CSQ", "later", _FINE_TUNED),
        Recipe("phpq", "PHPQ", "fine-grained"),
    )
}


def recipe_config(method: str) -> RunConfig:
    """Return the settings of a run of a method.

    Args:
        method: One of `RECIPES`.

    Raises:
        ConfigError: If there is no such method; the message names the nearest.
    """
    if method not in RECIPES:
        raise ConfigError(
            f"Unknown method {method!r}. {nearest_hint(method, get_args(MethodName))}"
        )
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
