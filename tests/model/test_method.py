"""The table of methods, their options, and what they share."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from phpq.codes import pack_signs
from phpq.config import RECIPES, in_range, option
from phpq.errors import ConfigError
from phpq.model import Network, build_method
from phpq.model.method import Method, MethodSetup, pack_bits, read_options
from phpq.recipes import resolve_config
from tiny_runs import CLASSES, tiny_config

Made = TypeVar("Made", bound=Method)
BYTES = ("quantizer.codebook_size=256", "quantizer.num_codebooks=2")


class Base(Method):
    margin: float = option(0.5, "above 0")


class Derived(Base):
    """Has a module by the name of an option, which thus has another attribute."""

    width_limit: float = option(1, "a whole number from 1", name="width")
    other = 3.0

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.width = torch.nn.Linear(1, 1)


def with_options(kind: type[Made], **options: float) -> Made:
    setup = build_method(tiny_config(), CLASSES).setup
    return kind(dataclasses.replace(setup, options=options))


def method_class(name: str) -> type[Method]:
    module, _, kind = RECIPES[name].import_path.partition(":")
    found: type[Method] = getattr(importlib.import_module(module), kind)
    return found


def test_the_table_names_where_every_method_is() -> None:
    for recipe in RECIPES.values():
        assert issubclass(method_class(recipe.name), Method)


def test_the_default_is_phpq() -> None:
    assert isinstance(build_method(tiny_config(), CLASSES), Network)


def test_options_are_read_and_checked() -> None:
    assert with_options(Base).margin == 0.5
    assert with_options(Base, margin=2.0).margin == 2.0
    with pytest.raises(ConfigError, match=r"no option 'margn'.*Did you mean 'margin'"):
        with_options(Base, margn=1.0)
    with pytest.raises(ConfigError, match=r"options\.margin=-1\.0 of 'phpq' must be above 0"):
        with_options(Base, margin=-1.0)
    with pytest.raises(ConfigError, match=r"'phpq' has no option 'margin'\. It has none\."):
        with_options(Method, margin=1.0)


def test_options_are_inherited_and_may_have_another_attribute() -> None:
    made = with_options(Derived, margin=2.0, width=3)
    assert (made.margin, made.width_limit, made.other) == (2.0, 3, 3.0)
    assert isinstance(made.width, torch.nn.Linear)
    with pytest.raises(ConfigError) as caught:
        with_options(Derived, margin=0.0, width=2.5, width_limit=1, other=1)
    assert len(str(caught.value).splitlines()) == 4


def test_packing_on_the_device_is_packing_in_numpy() -> None:
    values = torch.randn(7, 24)
    values[0, 0] = 0
    packed = pack_bits(values)
    assert packed.dtype == torch.uint8
    np.testing.assert_array_equal(packed.numpy(), pack_signs(values.numpy()))


def test_the_head_learns_faster_than_the_backbone() -> None:
    network = build_method(tiny_config("method.name=orthohash", *BYTES), CLASSES)
    trunk, head = network.parameter_groups(0.1, 10)
    assert (trunk["base_rate"], head["base_rate"]) == (0.1, 1.0)
    parameters = [*trunk["params"], *head["params"]]  # type: ignore[misc]
    assert {id(p) for p in parameters} == {id(p) for p in network.parameters()}


@pytest.mark.parametrize("name", RECIPES)
def test_every_default_is_within_its_range(name: str) -> None:
    for item in vars(method_class(name)).values():
        if isinstance(item, dataclasses.Field):
            default: Any = item.default
            assert in_range(item, default)
    own = resolve_config(method=name).method.options
    method = build_method(tiny_config(f"method.name={name}", *BYTES), CLASSES)
    read_options(type(method), dataclasses.replace(method.setup, options=own))
