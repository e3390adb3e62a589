"""A shard alone: filters are kept for a while, its memory is what is said, rows are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ray import cloudpickle

from made_up_galleries import BOOKS, SIZE, make_codebooks, make_queries, make_record, make_store
from phpq.codes import FloatArray
from phpq.errors import ConfigError
from phpq.gallery.part import batches, find_part
from phpq.gallery.shard import Names, Request, Search, Shard, number_labels


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n * 7 % 64, label="ab"[n % 2], year=n) for n in range(90)])
    return Shard(store, make_codebooks(), 1, 3)


def tables(count: int = 1) -> FloatArray:
    return make_codebooks().lookup_tables(make_queries(count))


def test_its_rows_are_its_own(shard: Shard) -> None:
    found = shard.search(Search(tables(), 500))
    assert sorted(found.places[found.places >= 0].tolist()) == list(range(30, 60))
    assert found.total == len(shard) == 30
    assert (shard.first, shard.total) == (30, 90)
    assert np.array_equal(shard.candidates("id", "i31").places, [31])
    assert np.array_equal(shard.candidates("uri", "/files/i59").places, [59])
    assert not len(shard.candidates("id", "i60").places)
    assert np.array_equal(shard.locate(np.array([44, 33])).offsets, [44, 33])


def test_a_prepared_shard_finds_the_same_rows(shard: Shard) -> None:
    asked = [("id", f"i{n}") for n in (29, 30, 45, 60)] + [("uri", "/files/i59"), ("uri", "x")]
    before = [shard.candidates(*one).places.tolist() for one in asked]
    shard.prepare()
    assert [shard.candidates(*one).places.tolist() for one in asked] == before
    assert before == [[], [30], [45], [], [59], []]


def test_several_queries_are_answered_as_one_by_one(shard: Shard) -> None:
    for options in ({}, {"where": "year > 50"}, {"labels": ("a",), "leave_out": 44}):
        together = shard.search(Search(tables(5), 7, **options))
        for number in range(5):
            alone = shard.search(Search(tables(5)[number : number + 1], 7, **options))
            assert np.array_equal(alone.places[0], together.places[number])
            assert np.array_equal(alone.offsets[0], together.offsets[number])
            assert np.array_equal(alone.scores[0], together.scores[number])
            assert alone.total == together.total


def test_a_request_that_travelled_has_the_same_answer(shard: Shard) -> None:
    search = Search(tables(), 3, leave_out=42)
    for request, expected in (
        (Request("search", (search,)), shard.search(search).places),
        (Request("candidates", ("id", "i35")), np.array([35])),
        (Request("locate", (np.array([33]),)), np.array([33])),
        (Request("word_rows", (0, 2, np.array([0]))), shard.word_rows(0, 2, np.array([0])).places),
    ):
        answer = cloudpickle.loads(cloudpickle.dumps(request)).run(shard)
        assert np.array_equal(answer.places, expected), request
    assert np.array_equal(Request("facts").run(shard).usage, shard.facts().usage)


def test_a_row_is_left_out_only_where_it_is(shard: Shard) -> None:
    for leave_out, total in ((45, 29), (29, 30), (60, 30), (0, 30)):
        found = shard.search(Search(tables(), 500, leave_out=leave_out))
        assert leave_out not in found.places
        assert (found.total, int((found.places >= 0).sum())) == (total, total)
    odd = shard.search(Search(tables(), 500, labels=("b",), leave_out=44))
    assert odd.total == 15  # 44 is not among them


def test_facts_are_counted(shard: Shard) -> None:
    facts = shard.facts()
    assert (facts.label_names, facts.label_counts.tolist()) == (("a", "b"), [15, 15])
    assert facts.usage.shape == (BOOKS, SIZE)
    assert (facts.usage.sum(axis=1) == 30).all()
    for word in range(SIZE):
        count = int(facts.usage[1, word])
        rows = shard.word_rows(1, word, np.arange(count))
        expected = [n for n in range(30, 60) if n * 7 % 64 // SIZE % SIZE == word]
        assert rows.places.tolist() == expected


def test_few_filters_are_kept(shard: Shard) -> None:
    for year in range(30):
        shard.search(Search(tables(), 1, where=f"year = {year}"))
    assert len(shard._masks) == 16
    with pytest.raises(ConfigError, match="colour"):
        shard.search(Search(tables(), 1, where="colour = 'red'"))


def test_memory_is_what_the_docstring_says(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n % 64) for n in range(20_000)])
    shard = Shard(store, make_codebooks())
    fixed = 4 * (SIZE**2 + 1) * BOOKS + 100_000  # tables of cells; rows that are not sorted yet
    shard.search(Search(tables(), 1))
    assert shard.memory_bytes() <= len(shard) * (1.5 * BOOKS + 7 + 8) + fixed
    shard.prepare()
    assert shard.memory_bytes() <= len(shard) * (1.5 * BOOKS + 7 + 24) + fixed


LABELS = ("wren", None, "owl", "finch", "wren")


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_are_found_by_text(tmp_path: Path, parts: int) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n, label=LABELS[n % 5]) for n in range(30)])
    store.put([make_record(f"i{n}", n, label=LABELS[n % 5]) for n in (3, 17)])  # moves them
    expected = [
        row for table in batches(store) for row in table.select(["id", "label"]).to_pylist()
    ]
    for number in range(parts):
        part = find_part(store, number, parts)
        names = Names(part, "id")
        own = expected[part.first : part.first + len(part.rows)]
        for place, record in enumerate(own):
            assert place in names.candidates(record["id"]).tolist()
        assert not len(names.candidates("none"))
        labels, label_of = number_labels(part)
        assert labels == tuple(sorted({r["label"] for r in own if r["label"] is not None}))
        assert [labels[n] if n >= 0 else None for n in label_of] == [r["label"] for r in own]
        assert names.memory_bytes() == 12 * len(own)


def test_no_rows_have_no_names(tmp_path: Path) -> None:
    part = find_part(make_store(tmp_path / "g"))
    assert not len(Names(part, "id").candidates("a"))
    labels, label_of = number_labels(part)
    assert labels == ()
    assert np.array_equal(label_of, np.empty(0, np.int32))
