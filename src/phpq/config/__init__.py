"""Every knob of every stage: TOML in, JSON out; no torch.

`RunConfig` composes one dataclass per stage. `parse` builds it from nested plain data (a TOML file,
a checkpoint's JSON), `override` applies `stage.field=value` texts.
"""

from phpq.config.methods import RECIPES, Recipe
from phpq.config.parsing import load_toml, override, parse, to_dict
from phpq.config.stages import (
    DataConfig,
    LossConfig,
    MethodConfig,
    ModelConfig,
    QuantizerConfig,
    RunConfig,
    TrainingConfig,
    with_bits,
)

__all__ = [
    "RECIPES",
    "DataConfig",
    "LossConfig",
    "MethodConfig",
    "ModelConfig",
    "QuantizerConfig",
    "Recipe",
    "RunConfig",
    "TrainingConfig",
    "load_toml",
    "override",
    "parse",
    "to_dict",
    "with_bits",
]
