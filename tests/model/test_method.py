"""The table of methods, their options, and what they share."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from phpq.binary_codes import pack_signs
from phpq.config import RECIPES, MethodConfig, option
from phpq.errors import ConfigError
from phpq.model import Network, build_method
from phpq.model.method import Method, pack_bits, read_options
from phpq.recipes import resolve_config
from tiny_runs import CLASSES, tiny_config


@dataclass(frozen=True)
class SomeOptions:
    margin: float = option(0.5, "above 0")


def method_class(name: str) -> type[Method]:
    module, _, kind = RECIPES[name].place.partition(":")
    found: type[Method] = getattr(importlib.import_module(module), kind)
    return found


def test_the_table_names_where_every_method_is() -> None:
    for recipe in RECIPES.values():
        assert issubclass(method_class(recipe.name), Method)


def test_the_default_is_phpq() -> None:
    assert isinstance(build_method(tiny_config(), CLASSES), Network)


def test_options_are_read_and_checked() -> None:
    assert read_options(SomeOptions, MethodConfig()).margin == 0.5
    assert read_options(SomeOptions, MethodConfig(options={"margin": 2.0})).margin == 2.0
    with pytest.raises(ConfigError, match=r"no option 'margn'.*Did you mean 'margin'"):
        read_options(SomeOptions, MethodConfig(options={"margn": 1.0}))
    with pytest.raises(ConfigError, match=r"options\.margin=-1\.0 of 'phpq' must be above 0"):
        read_options(SomeOptions, MethodConfig(options={"margin": -1.0}))


def test_packing_on_the_device_is_packing_in_numpy() -> None:
    values = torch.randn(7, 24)
    values[0, 0] = 0
    packed = pack_bits(values)
    assert packed.dtype == torch.uint8
    np.testing.assert_array_equal(packed.numpy(), pack_signs(values.numpy()))


def test_the_head_learns_faster_than_the_backbone() -> None:
    bits = ("quantizer.codebook_size=256", "quantizer.num_codebooks=2")
    network = build_method(tiny_config("method.name=orthohash", *bits), CLASSES)
    trunk, head = network.parameter_groups(0.1, 10)
    assert (trunk["base_rate"], head["base_rate"]) == (0.1, 1.0)
    parameters = [*trunk["params"], *head["params"]]  # type: ignore[misc]
    assert {id(p) for p in parameters} == {id(p) for p in network.parameters()}


@pytest.mark.parametrize("name", RECIPES)
def test_every_default_is_within_its_range(name: str) -> None:
    config = resolve_config(method=name)
    options: Any = read_options(method_class(name).option_type, config.method)
    defaults = MethodConfig(name=name, options=dataclasses.asdict(options))
    assert read_options(type(options), defaults) == options
