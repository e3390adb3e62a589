"""However a gallery is cut, every answer is that of one shard, bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery import Gallery, GalleryStore
from phpq.gallery.shard import Ranked
from phpq.gallery.shards import LocalShards, merge_ranked
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


def told(found: Found) -> tuple[object, ...]:
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


@pytest.fixture(scope="module", params=[2, 3, 8])
def cut(folder: Path, request: pytest.FixtureRequest) -> GalleryView:
    return GalleryView(GalleryStore.open(folder), make_codebooks(), LocalShards(request.param))


def test_searches_are_those_of_one_index(one: GalleryView, cut: GalleryView) -> None:
    for number, query in enumerate(make_queries(4)):
        for page in PAGES:
            for leave_out in (None, 0, 37 + number, len(one) - 1):
                expected = told(one.search(query, page, leave_out=leave_out))
                assert told(cut.search(query, page, leave_out=leave_out)) == expected


def test_ties_that_cross_shards_keep_the_order_of_insertion(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", 5) for n in range(50)])
    query = make_queries(1)[0]
    for shards in (1, 2, 3, 60):
        view = GalleryView(GalleryStore.open(tmp_path / "g"), make_codebooks(), LocalShards(shards))
        found = view.search(query, Page(top_k=30, offset=10), leave_out=20)
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
            expected = told(one.search(one.query_of(record), page, leave_out=place))
            assert told(cut.search(one.query_of(record), page, leave_out=place)) == expected


def test_names_and_facts_are_those_of_one(one: GalleryView, cut: GalleryView) -> None:
    assert (len(cut), cut.version, cut.columns) == (len(one), one.version, one.columns)
    assert cut.label_counts == one.label_counts
    assert np.array_equal(cut.usage, one.usage)
    places = np.random.default_rng(0).permutation(len(one))
    for ours, theirs in zip(cut.records(places), one.records(places), strict=True):
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
