"""Filters from strangers: what people write passes, what breaks Lance does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_galleries import make_record, make_store
from phpq.errors import ConfigError
from phpq.serve.filters import check_where

COLUMNS = ("id", "label", "year", "place", "seen")


@pytest.mark.parametrize(
    "where",
    [
        "label = 'sparrow'",
        "label = 'it''s' AND year > 2020",
        "year >= -3.5e2 and year <> 4",
        "id LIKE '2024/%' OR NOT (label IN ('a', 'b') AND year BETWEEN 1 AND 2)",
        "place IS NOT NULL",
        "seen = true",
        "LABEL ilike '%wren'",
        "label = 'DROP TABLE; -- repeat(1)'",
        "year=1",
    ],
)
def test_what_people_write_passes_unchanged(where: str) -> None:
    assert check_where(where, COLUMNS) == where


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("repeat('a', 1000000000) = 'a'", "'repeat' is neither a column"),
        ("label('a') = 'a'", "'label' is no function"),
        ("year" + "+1" * 300 + " > 3", "cannot be read"),
        ("year -1 -1 -1 > 3", "follows a value"),
        ("(" * 11 + "year = 1" + ")" * 11, "too deeply nested"),
        ("not " * 9 + "seen", "too deeply nested"),
        (" or ".join(["year = 1"] * 60), "too long"),
        ("label = 'a'; drop table x", "cannot be read"),
        ("year in (select 1)", "'select' is neither"),
        ("code = 1", "'code' is neither a column"),
        ("sha256 = 'a'", "'sha256' is neither"),
        ("_rowid > 1", "'_rowid' is neither"),
        ("label = 'open", "cannot be read"),
        ('"label" = 1', "cannot be read"),
        ("label = \x00", "cannot be read"),
        ("/* */ year = 1", "cannot be read"),
    ],
)
def test_everything_else_is_refused_with_a_reason(where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        check_where(where, COLUMNS)
    assert reason in str(caught.value)
    assert "An example:" in str(caught.value)


def test_a_long_one_is_refused_before_it_is_read() -> None:
    with pytest.raises(ConfigError, match="1001 characters"):
        check_where("x" * 1001, COLUMNS)


def test_what_passes_is_understood_by_lance_or_refused_by_it(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n, label="ab"[n % 2], year=n) for n in range(9)])
    columns = ("id", "label", "year")
    # As deep and as long as allowed: it must not end the process.
    for where, expected in (
        ("(" * 10 + "year = 1" + ")" * 10, 1),
        ("not " * 8 + "(year = 1)", 1),
        (" or ".join(["year = 1"] * 50), 1),
        ("label = 'a' and year > 3", 3),
    ):
        assert store.count(check_where(where, columns)) == expected
    with pytest.raises(ConfigError, match="cannot be used"):
        store.count(check_where("year = = 1", columns))
