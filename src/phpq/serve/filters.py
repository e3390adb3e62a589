"""Filters from the network: a `where` text in, a check that it is a plain comparison out.

The library hands `where` to Lance as it is. From strangers that is too much: a few hundred nested
operators overflow the stack of its parser and end the process, and `repeat('a', 1000000000)` takes
seconds and gigabytes. Here only columns, literals, comparisons and AND, OR, NOT pass.
"""

from __future__ import annotations

import re

from phpq.errors import ConfigError
from phpq.serve.settings import MAX_WHERE

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?!\w))
      | (?P<word>[^\W\d]\w*)
      | (?P<mark><=|>=|<>|!=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
# What may stand beside a column: no arithmetic, no functions, no subqueries.
_JOINTS = ("and", "or", "not", "in", "is", "like", "ilike", "between", "escape")
_WORDS = frozenset((*_JOINTS, "null", "true", "false", "date", "timestamp"))
_MOST_TOKENS = 200
_DEEPEST = 10
_NOT = 8  # each is one more level of the tree
_ALLOWED = (
    "Over the network a filter holds columns, literals, = != < <= > >=, AND, OR, NOT, IN, LIKE, "
    "BETWEEN, IS NULL and parentheses"
)


def check_where(where: str, columns: tuple[str, ...]) -> str:
    """Return a filter if it is safe to run: comparisons of columns with literals, no more."""
    if len(where) > MAX_WHERE:
        raise ConfigError(
            f"where has {len(where)} characters; at most {MAX_WHERE} are allowed over the network."
        )
    place, depth, count, nots = 0, 0, 0, 0
    known = {name.lower() for name in columns} | _WORDS
    before = ""  # the word before, that a parenthesis would turn into a call
    operand = False  # whether a column or a literal came before: another one would be arithmetic
    end = len(where.rstrip())
    while place < end:
        match = _TOKEN.match(where, place)
        if match is None:
            raise _refuse(where, f"{where[place : place + 10].strip()!r} cannot be read there")
        place = match.end()
        count += 1
        word = match["word"]
        if word is not None and word.lower() not in known:
            raise _refuse(where, f"{word!r} is neither a column nor one of these words", columns)
        nots += word is not None and word.lower() == "not"
        if match["mark"] == "(":
            depth += 1
            if before and before not in ("and", "or", "not", "in", "between"):
                raise _refuse(where, f"{before!r} is no function")
        elif match["mark"] == ")":
            depth -= 1
        if depth > _DEEPEST or count > _MOST_TOKENS or nots > _NOT:
            raise _refuse(where, "it is too long or too deeply nested")
        before = word.lower() if word is not None else ""
        is_operand = match["mark"] is None and before not in _WORDS
        if operand and is_operand:
            raise _refuse(where, f"{match[0].strip()!r} follows a value without a comparison")
        operand = is_operand
    return where


def _refuse(where: str, reason: str, columns: tuple[str, ...] = ()) -> ConfigError:
    listed = f" Columns: {', '.join(columns)}." if columns else ""
    return ConfigError(
        f"where={where!r} cannot be used: {reason}. {_ALLOWED}.{listed} "
        "An example: label = 'sparrow' AND id LIKE '2024/%'"
    )
