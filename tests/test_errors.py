"""The exception tree: what may be caught as what, and the messages for unknown names."""

from __future__ import annotations

import inspect

import pytest

from phpq import errors
from phpq.errors import PhpqError, nearest_hint, unknown_name

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception) and kind is not PhpqError
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_ours_and_a_builtin_and_says_what_it_is_for(kind: type[Exception]) -> None:
    assert issubclass(kind, PhpqError)
    builtin = (ValueError, LookupError, RuntimeError, ImportError)
    assert issubclass(kind, builtin)
    assert kind.__doc__


def test_an_unknown_name_is_shown_with_the_known_and_the_nearest() -> None:
    message = str(unknown_name("pooling", "gme", ["paper", "gem"]))
    assert message == "Unknown pooling 'gme'. Known: gem, paper. Did you mean 'gem'?"


def test_nothing_near_is_suggested_for_a_name_like_no_other() -> None:
    assert nearest_hint("zzz", ["gem", "paper"]) == "Known: gem, paper."


def test_long_lists_are_cut() -> None:
    names = [f"name{i:03d}" for i in range(60)]
    hint = nearest_hint("name059x", names)
    assert "name039, ..." in hint
    assert "name040" not in hint
    assert hint.endswith("Did you mean 'name059'?")
