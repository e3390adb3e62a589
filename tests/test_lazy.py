"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

PACKAGES = ("phpq", "phpq.data", "phpq.evaluation", "phpq.gallery", "phpq.serve")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_is_found_and_no_other(name: str) -> None:
    package = importlib.import_module(name)
    for each in package.__all__:
        value = getattr(package, each)
        assert vars(package)[each] is value  # the next access is a plain one
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_also_that_of_a_module(name: str) -> None:
    # Importing the module would hide the name.
    package = importlib.import_module(name)
    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)
