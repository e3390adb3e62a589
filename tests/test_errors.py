"""The exception tree: what may be caught as what, and the messages for unknown names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import phpq.client
import phpq.training.distributed
from phpq import errors
from phpq.errors import PhpqError, error_pages, explain_code, nearest_hint, unknown_name

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


def test_every_kind_has_a_code_and_every_code_a_page() -> None:
    kinds = [kind for kind in _family(PhpqError) if kind.__module__ != "phpq.serve._refusals"]
    assert {kind.code for kind in kinds} == set(error_pages())
    assert len({kind.code for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert explain_code(kind.code) == explain_code(kind.__name__)


def _family(kind: type[PhpqError]) -> list[type[PhpqError]]:
    return [found for child in kind.__subclasses__() for found in (child, *_family(child))]


def test_the_texts_of_the_pages_are_those_of_the_code() -> None:
    """A text that no message has any more would be looked for in vain."""
    sources = Path(phpq.__file__).parent.rglob("*.py")
    written = "\n".join(
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    for code, page in error_pages().items():
        texts = re.findall(r"^- `(.+?)`:", page, re.MULTILINE)
        assert texts, code
        for text in texts:
            assert text in written, (code, text)


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'format'"):
        explain_code("fromat")
