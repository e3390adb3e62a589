"""The names that `import phpq` promises."""

from __future__ import annotations

import importlib.resources

import pytest

import phpq


def test_the_names_are_these() -> None:
    assert phpq.__all__ == [
        "Client",
        "Gallery",
        "Model",
        "PhpqError",
        "RunConfig",
        "evaluate",
        "load",
        "open_dataset",
        "train",
    ]
    assert len(phpq.__all__) <= 9


@pytest.mark.parametrize("name", phpq.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(phpq, name)
    assert value.__name__ == name
    assert value.__module__.startswith("phpq.")
    assert value.__doc__
    assert name in dir(phpq)
    assert vars(phpq)[name] is value  # looked up once


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'phpq' has no attribute 'trian'"):
        _ = phpq.trian  # type: ignore[attr-defined]


def test_version_and_types_are_shipped() -> None:
    assert phpq.__version__.count(".") == 2
    assert importlib.resources.files("phpq").joinpath("py.typed").is_file()
