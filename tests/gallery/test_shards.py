"""However a gallery is cut, every answer is that of one shard, bit for bit; a shard alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

from made_up_galleries import (
    BOOKS,
    SIZE,
    make_codebooks,
    make_queries,
    make_record,
    make_store,
    record_at,
)
from phpq.codes import FloatArray
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery import Gallery, GalleryStore
from phpq.gallery._part import batches, find_part
from phpq.gallery.shards import (
    LocalShards,
    Ranked,
    Request,
    Search,
    Shard,
    TextIndex,
    merge_ranked,
    part_labels,
)
from phpq.gallery.view import GalleryView, Page
from phpq.hits import Found
from served_galleries import ids, shared_gallery

PAGES = [
    Page(top_k=top_k, offset=offset, where=where, labels=labels)
    for top_k, offset, where, labels in itertools.product(
        (1, 7, 200),
        (0, 5, 90),
        (None, "year > 60", "year < 25 OR label IS NULL", "year = 3"),
        ((), ("a",), ("a", "b", "none"), ("none",)),
    )
]


def contents(found: Found) -> tuple[object, ...]:
    return found.hits, found.best, found.total


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery with many ties, several files, and rows deleted and replaced."""
    folder = tmp_path_factory.mktemp("shards") / "g"
    store = make_store(folder)
    for start in range(0, 120, 30):
        store.put(
            [
                make_record(f"i{n}", n * 7 % 16, label=("a", "b", None)[n % 3], year=n)
                for n in range(start, start + 30)
            ]
        )
    store.delete([f"i{n}" for n in range(0, 120, 11)])
    store.put([make_record(f"i{n}", n % 16, label="a", year=n) for n in (2, 50, 119, 300)])
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> GalleryView:
    return GalleryView(GalleryStore.open(folder), make_codebooks())


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, marks=pytest.mark.rare), 3, pytest.param(8, marks=pytest.mark.rare)],
)
def cut(folder: Path, request: pytest.FixtureRequest) -> GalleryView:
    return GalleryView(GalleryStore.open(folder), make_codebooks(), LocalShards(request.param))


def test_searches_are_those_of_one_index(one: GalleryView, cut: GalleryView) -> None:
    queries = make_queries(4)  # in turn: every page meets all of them
    for number, page in enumerate(PAGES):
        for turn, leave_out in enumerate(((), (0,), (37 + number % 4, 3, 44), (len(one) - 1,))):
            query = queries[(number + turn) % 4]
            expected = contents(one.search(query, page, leave_out=leave_out))
            assert contents(cut.search(query, page, leave_out=leave_out)) == expected


def test_ties_that_cross_shards_keep_the_order_of_insertion(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", 5) for n in range(50)])
    query = make_queries(1)[0]
    for shards in (1, 2, 3, 60):
        view = GalleryView(GalleryStore.open(tmp_path / "g"), make_codebooks(), LocalShards(shards))
        found = view.search(query, Page(top_k=30, offset=10), leave_out=(20,))
        expected = [f"i{n}" for n in (*range(10, 20), *range(21, 41))]
        assert [hit.id for hit in found] == expected


def test_reranked_searches_are_those_of_one_index() -> None:
    codebooks = Gallery.open(shared_gallery(), device="cpu").model.codebooks
    one = GalleryView(GalleryStore.open(shared_gallery()), codebooks)
    for shards in (2, 3):
        cut = GalleryView(GalleryStore.open(shared_gallery()), codebooks, LocalShards(shards))
        for name, rerank, offset in itertools.product(ids()[:6], (0, 9, 24), (0, 3)):
            place, record = one.find(name)
            page = Page(top_k=5, offset=offset, rerank=rerank)
            expected = contents(one.search(one.query_of(record), page, leave_out=(place,)))
            assert contents(cut.search(one.query_of(record), page, leave_out=(place,))) == expected


def test_names_and_facts_are_those_of_one(one: GalleryView, cut: GalleryView) -> None:
    assert (len(cut), cut.version, cut.columns) == (len(one), one.version, one.columns)
    assert cut.label_counts == one.label_counts
    assert np.array_equal(cut.usage, one.usage)
    places = np.random.default_rng(0).permutation(len(one))
    for place in places.tolist():
        ours, theirs = record_at(cut, place), record_at(one, place)
        assert (ours.id, ours.metadata) == (theirs.id, theirs.metadata)
        assert cut.find(ours.id)[0] == one.find(ours.id)[0]
        assert cut.find_uri(str(ours.uri))[0] == one.find_uri(str(ours.uri))[0]
    for limit in (1, 5, 500):
        ours_found, ours_total = cut.word_images(0, 1, limit)
        found, total = one.word_images(0, 1, limit)
        assert [image.id for image in ours_found] == [image.id for image in found]
        assert ours_total == total
    with pytest.raises(UnknownNameError, match="There is no image 'none'"):
        cut.find("none")
    with pytest.raises(ConfigError, match="colour"):
        cut.search(make_queries(1)[0], Page(where="colour = 'red'"))


def test_an_empty_gallery_can_be_cut(tmp_path: Path) -> None:
    make_store(tmp_path / "g")
    view = GalleryView(GalleryStore.open(tmp_path / "g"), make_codebooks(), LocalShards(3))
    found = view.search(make_queries(1)[0], Page())
    assert (found.hits, found.total, len(view)) == ((), 0, 0)
    assert view.word_images(0, 0, 5) == ([], 0)
    assert LocalShards(3).missing() == []


def best(scores: list[float], first: int, wanted: int) -> Ranked:
    """Return the hits of a shard whose rows have these scores, by plain sorting."""
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:wanted]
    places = np.array(order, np.int64) + first
    values = np.array([scores[row] for row in order], np.float32)
    missing = wanted - len(order)  # filled as an index fills them
    places = np.append(places, np.full(missing, -1))[None]
    values = np.append(values, np.full(missing, -np.inf, np.float32))[None]
    return Ranked(places, np.where(places >= 0, 1000 - places, -1), values, len(scores))


@given(
    shards=st.lists(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]), max_size=9), min_size=1),
    wanted=st.integers(1, 12),
)
def test_merging_is_searching_all(shards: list[list[float]], wanted: int) -> None:
    firsts = np.cumsum([0, *(len(shard) for shard in shards)]).tolist()
    parts = [best(s, first, wanted) for s, first in zip(shards, firsts, strict=False)]
    merged = merge_ranked(parts, wanted)
    expected = best([score for shard in shards for score in shard], 0, wanted)
    assert np.array_equal(merged.places, expected.places)
    assert np.array_equal(merged.scores, expected.scores)
    assert np.array_equal(merged.offsets, expected.offsets)
    assert merged.total == expected.total


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
    for options in ({}, {"where": "year > 50"}, {"labels": ("a",), "leave_out": (44,)}):
        together = shard.search(Search(tables(5), 7, **options))
        for number in range(5):
            alone = shard.search(Search(tables(5)[number : number + 1], 7, **options))
            assert np.array_equal(alone.places[0], together.places[number])
            assert np.array_equal(alone.offsets[0], together.offsets[number])
            assert np.array_equal(alone.scores[0], together.scores[number])
            assert alone.total == together.total


def test_a_request_that_travelled_has_the_same_answer(shard: Shard) -> None:
    search = Search(tables(), 3, leave_out=(42,))
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
    for left, total in (((45,), 29), ((29,), 30), ((60,), 30), ((0,), 30), ((45, 0, 31, 31), 28)):
        found = shard.search(Search(tables(), 500, leave_out=left))
        assert not set(left) & set(found.places.ravel().tolist())
        assert (found.total, int((found.places >= 0).sum())) == (total, total)
    odd = shard.search(Search(tables(), 500, labels=("b",), leave_out=(44,)))
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
    assert len(shard._masks._cache) == 16
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
        names = TextIndex(part, "id")
        own = expected[part.first : part.first + len(part.rows)]
        for place, record in enumerate(own):
            assert place in names.candidates(record["id"]).tolist()
        assert not len(names.candidates("none"))
        labels, label_of = part_labels(part)
        assert labels == tuple(sorted({r["label"] for r in own if r["label"] is not None}))
        assert [labels[n] if n >= 0 else None for n in label_of] == [r["label"] for r in own]
        assert names.memory_bytes() == 12 * len(own)


def test_no_rows_have_no_names(tmp_path: Path) -> None:
    part = find_part(make_store(tmp_path / "g"))
    assert not len(TextIndex(part, "id").candidates("a"))
    labels, label_of = part_labels(part)
    assert labels == ()
    assert np.array_equal(label_of, np.empty(0, np.int32))
