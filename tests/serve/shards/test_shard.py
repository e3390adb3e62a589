"""A shard alone: filters are kept for a while, its memory is what is said, rows are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import BOOKS, SIZE, make_codebooks, make_queries, make_record, make_store
from phpq.codes import FloatArray
from phpq.errors import ConfigError
from phpq.serve.shards.requests import Search
from phpq.serve.shards.shard import Shard


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n * 7 % 64, label="ab"[n % 2], year=n) for n in range(90)])
    return Shard(store, make_codebooks(), 1, 3)


def table() -> FloatArray:
    tables: FloatArray = make_codebooks().lookup_tables(make_queries(1))
    return tables.reshape(BOOKS, SIZE)


def test_its_rows_are_its_own(shard: Shard) -> None:
    found = shard.search(Search(table(), 500))
    assert sorted(found.places.tolist()) == list(range(30, 60))
    assert found.total == len(shard) == 30
    assert (shard.first, shard.total) == (30, 90)
    assert np.array_equal(shard.candidates("id", "i31").places, [31])
    assert np.array_equal(shard.candidates("uri", "/files/i59").places, [59])
    assert not len(shard.candidates("id", "i60").places)
    assert np.array_equal(shard.locate(np.array([44, 33])).offsets, [44, 33])


def test_a_row_is_left_out_only_where_it_is(shard: Shard) -> None:
    for leave_out, total in ((45, 29), (29, 30), (60, 30), (0, 30)):
        found = shard.search(Search(table(), 500, leave_out=leave_out))
        assert leave_out not in found.places
        assert (found.total, len(found.places)) == (total, total)
    odd = shard.search(Search(table(), 500, labels=("b",), leave_out=44))
    assert odd.total == 15  # 44 is not among them


def test_facts_are_counted(shard: Shard) -> None:
    facts = shard.facts
    assert (facts.rows, facts.label_names, facts.label_counts.tolist()) == (
        30,
        ("a", "b"),
        [15, 15],
    )
    assert facts.usage.shape == (BOOKS, SIZE)
    assert (facts.usage.sum(axis=1) == 30).all()
    for word in range(SIZE):
        count = int(facts.usage[1, word])
        rows = shard.word_rows(1, word, np.arange(count))
        expected = [n for n in range(30, 60) if n * 7 % 64 // SIZE % SIZE == word]
        assert rows.places.tolist() == expected


def test_few_filters_are_kept(shard: Shard) -> None:
    for year in range(30):
        shard.search(Search(table(), 1, where=f"year = {year}"))
    assert len(shard._masks) == 16
    with pytest.raises(ConfigError, match="colour"):
        shard.search(Search(table(), 1, where="colour = 'red'"))


def test_memory_is_what_the_docstring_says(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n % 64) for n in range(20_000)])
    shard = Shard(store, make_codebooks())
    fixed = 4 * (SIZE**2 + 1) * BOOKS + 100_000  # tables of cells; rows that are not sorted yet
    assert shard.memory_bytes() <= len(shard) * (1.5 * BOOKS + 7 + 24) + fixed
