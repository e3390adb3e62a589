"""All settings: TOML in, JSON out; no torch.

`RunConfig` holds one dataclass per stage. `parse` builds it from nested plain data (a TOML file, a
checkpoint's JSON), `override` applies `stage.field=value` texts.
"""

from phpq.config.methods import READINGS, RECIPES, Recipe
from phpq.config.parsing import CONFIG_FILE, override, parse, read_toml, to_dict
from phpq.config.stages import (
    DataConfig,
    LossConfig,
    MethodConfig,
    ModelConfig,
    QuantizerConfig,
    RunConfig,
    TrainingConfig,
    in_range,
    option,
    with_bits,
)
from phpq.config.trunks import TERMS, TRUNKS, Trunk

__all__ = [
    "CONFIG_FILE",
    "READINGS",
    "RECIPES",
    "TERMS",
    "TRUNKS",
    "DataConfig",
    "LossConfig",
    "MethodConfig",
    "ModelConfig",
    "QuantizerConfig",
    "Recipe",
    "RunConfig",
    "TrainingConfig",
    "Trunk",
    "in_range",
    "option",
    "override",
    "parse",
    "read_toml",
    "to_dict",
    "with_bits",
]
