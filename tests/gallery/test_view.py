"""A frozen gallery: the answers of the library, filters, paging, names, and no change ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from made_up_galleries import (
    DIM,
    TIED_ROWS,
    make_codebooks,
    make_queries,
    make_record,
    make_store,
    make_ties,
    plain_float_score,
    plain_scan,
    record_at,
)
from own_galleries import KINDS, add, filled, pictures, query_for, view_of
from phpq.additive import softmax
from phpq.codes import FloatArray, IntArray, score_codes
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery import Gallery, GalleryStore, Record
from phpq.gallery import view as view_module
from phpq.gallery._part import batches, find_part
from phpq.gallery.shards import LocalShards
from phpq.gallery.view import GalleryView, Page
from phpq.index import ties
from served_galleries import ids, shared_gallery


def made_up(folder: Path, count: int = 40) -> tuple[GalleryView, dict[str, Record]]:
    store = make_store(folder)
    records = [
        make_record(f"i{n}", n * 7 % 64, label=("a", "b", None)[n % 3], year=n)
        for n in range(count)
    ]
    store.put(records)
    store = GalleryStore.open(folder)
    return GalleryView(store, make_codebooks()), {record.id: record for record in records}


def test_hits_are_those_of_a_plain_scan(tmp_path: Path) -> None:
    view, records = made_up(tmp_path / "g")
    for query in make_queries(5):
        found = view.search(query, Page(top_k=7))
        expected = plain_scan(records, query, 7)
        assert [hit.id for hit in found] == [name for name, _ in expected]
        assert [hit.score for hit in found] == pytest.approx(
            [score for _, score in expected], abs=2e-5
        )
        assert found.total == 40
        assert max(hit.score for hit in found) <= found.best + 1e-6


def test_pages_put_together_are_one_long_answer(tmp_path: Path) -> None:
    view, _ = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    whole = [hit.id for hit in view.search(query, Page(top_k=40)).hits]
    pages = [view.search(query, Page(top_k=9, offset=start)) for start in range(0, 50, 9)]
    assert [hit.id for page in pages for hit in page] == whole
    assert {page.total for page in pages} == {40}


def test_filters_hold_and_are_counted(tmp_path: Path) -> None:
    view, records = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    for page, expected in (
        (Page(top_k=50, where="year > 30"), {n for n in range(40) if n > 30}),
        (Page(top_k=50, labels=("a",)), {n for n in range(40) if n % 3 == 0}),
        (Page(top_k=50, labels=("a", "b"), where="year < 6"), {0, 1, 3, 4}),
        (Page(top_k=50, labels=("none",)), set()),
        (Page(top_k=50, where="label IS NULL"), {n for n in range(40) if n % 3 == 2}),
    ):
        for _ in range(2):  # the second time the answer was kept
            found = view.search(query, page)
            assert {hit.id for hit in found} == {f"i{n}" for n in expected}
            assert found.total == len(expected)
    assert view.label_counts == {"a": 14, "b": 13}
    assert len(records) == len(view)


def test_few_answers_are_kept(tmp_path: Path) -> None:
    view, _ = made_up(tmp_path / "g")
    for year in range(30):
        view.cached(("key", year), lambda: 1)
    assert view.cached(("key", 22), lambda: 2) == 1  # the last eight are kept
    assert view.cached(("key", 21), lambda: 2) == 2


def test_an_image_is_found_by_id_and_by_uri(tmp_path: Path) -> None:
    view, records = made_up(tmp_path / "g")
    for place, record in enumerate(records.values()):
        assert view.find(record.id)[0] == place
        assert view.find_uri(str(record.uri))[0] == place
        assert record_at(view, place).id == record.id
        assert view.find(record.id)[0] == place  # now from what is remembered
    places, made = np.array([3, 0, 39]), list(records.values())
    for place, image in zip(places.tolist(), view.summaries(places), strict=True):
        record = made[place]
        assert (image.id, image.label) == (record.id, record.label)
        assert np.array_equal(image.code, record.code)
    assert not view.summaries(places[:0])
    with pytest.raises(UnknownNameError, match="There is no image 'I1'"):
        view.find("I1")
    with pytest.raises(UnknownNameError, match="Only images of the gallery"):
        view.find_uri("/etc/passwd")


def test_names_hold_after_deletion_and_replacement(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    store = make_store(tmp_path / "other")
    store.put([make_record(f"i{n}", n) for n in range(20)])
    store.delete([f"i{n}" for n in range(0, 20, 3)])
    store.put([make_record("i4", 60), make_record("i40", 1)])
    store.compact()
    view = GalleryView(store, make_codebooks())
    kept = {f"i{n}" for n in range(20) if n % 3} | {"i40"}
    assert {record_at(view, place).id for place in range(len(view))} == kept
    for name in kept:
        place, _ = view.find(name)
        assert record_at(view, place).id == name


def test_nothing_changes_while_others_write(tmp_path: Path) -> None:
    view, _ = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    before = [hit.id for hit in view.search(query, Page(top_k=40)).hits]
    store = GalleryStore.open(tmp_path / "g")
    store.delete(before[:5])
    store.put([make_record("new", 0)])
    assert [hit.id for hit in view.search(query, Page(top_k=40)).hits] == before
    with pytest.raises(UnknownNameError):
        view.find("new")


def test_a_search_by_id_is_the_one_of_the_library() -> None:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    view = GalleryView(GalleryStore.open(shared_gallery()), gallery.model.codebooks)
    for rerank in (0, 12):
        for name in ids()[:4]:
            place, _ = view.find(name)
            query = view.query_of(record_at(view, place))
            found = view.search(query, Page(top_k=5, rerank=rerank), leave_out=(place,))
            expected = gallery.search_id(name, 5, rerank=rerank)
            assert [hit.id for hit in found] == [hit.id for hit in expected]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])
            assert found.total == 23
            assert max(hit.score for hit in found) <= found.best + 1e-5


def test_what_the_gallery_refuses_is_refused_in_the_same_words(tmp_path: Path) -> None:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    view = GalleryView(GalleryStore.open(shared_gallery()), gallery.model.codebooks)
    query = view.query_of(record_at(view, 0))
    with pytest.raises(ConfigError) as ours:
        view.search(query, Page(top_k=9, rerank=3))
    with pytest.raises(ConfigError) as theirs:
        gallery.search(query, 9, rerank=3)
    assert str(ours.value) == str(theirs.value)
    bare, _ = made_up(tmp_path / "g")
    with pytest.raises(ConfigError, match=r"rerank=9 needs float embeddings.*keeps none"):
        bare.search(make_queries(1)[0], Page(rerank=9))


def test_an_empty_gallery_has_no_hits(tmp_path: Path) -> None:
    view = GalleryView(make_store(tmp_path / "g"), make_codebooks())
    found = view.search(make_queries(1)[0], Page())
    assert (found.hits, found.total, len(view)) == ((), 0, 0)
    assert view.columns == {"id": "string", "label": "string"}


def test_a_gallery_with_its_own_codebooks_is_searched_with_them(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    view, books = view_of(store), store.own_codebooks()
    asked = np.concatenate([query_for(kind) for kind in KINDS])
    scores = score_codes(books.lookup_tables(asked), find_part(store).codes())
    names = [name for table in batches(store) for name in table["id"].to_pylist()]
    for number, found in enumerate(view.search_many(asked, Page(top_k=40))):
        order = np.argsort(-scores[number], kind="stable")
        assert [hit.id for hit in found] == [names[place] for place in order]
        assert found.best == books.best(books.lookup_tables(asked))[number]
    # By floats: the order of the inner products of projected embeddings.
    reranked = view.search(asked[0], Page(top_k=5, rerank=40))
    kept = [
        record.embedding for record in store.find(names).values() if record.embedding is not None
    ]
    rows = books.vectors(np.stack(kept).astype(np.float32))
    products = dict(zip(store.find(names), rows @ books.vectors(asked[:1])[0], strict=True))
    assert [hit.id for hit in reranked] == sorted(products, key=lambda name: -products[name])[:5]
    assert reranked.best == pytest.approx(1, abs=1e-6)


def test_the_verdict_is_the_likeliest_kind_among_what_passes_the_filter(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", tuple(KINDS))
    add(store, [row | {"year": 2000} for row in pictures(("red", "blue"), 2, seed=5)])
    opened = GalleryStore.open(store.folder)
    books, asked = store.own_codebooks(), query_for("green")
    posteriors = softmax(books.sharpness * books.class_scores(asked))[0].tolist()
    likely = dict(zip(books.class_names, posteriors, strict=True))
    assert max(likely, key=likely.__getitem__) == "green"
    for shards in (1, 3):
        view = GalleryView(opened, make_codebooks(), LocalShards(shards))
        verdict = view.search(asked[0], Page(top_k=1)).verdict
        assert verdict is not None
        shown = dict([(verdict.label, verdict.share), *verdict.runners_up])
        assert shown == pytest.approx(likely, rel=1e-5)
        assert list(shown) == sorted(shown, key=lambda name: -shown[name])
        some = {name: likely[name] for name in ("red", "blue")}
        for page in (Page(where="year = 2000"), Page(labels=("red", "blue"))):
            verdict = view.search(asked[0], page).verdict
            assert verdict is not None
            shown = dict([(verdict.label, verdict.share), *verdict.runners_up])
            assert shown == pytest.approx(
                {name: share / sum(some.values()) for name, share in some.items()}, rel=1e-5
            )
        assert view.search(asked[0], Page(where="year = 1")).verdict is None
    # A class whose images are all gone is no kind of the gallery any more.
    store.delete(where="label = 'green'")
    verdict = view_of(store).search(asked[0], Page()).verdict
    assert verdict is not None
    assert "green" not in dict([(verdict.label, verdict.share), *verdict.runners_up])


def test_without_kinds_the_verdict_is_by_hits(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red",))
    store.delete(where="label IS NOT NULL")
    add(store, pictures(("red", "blue"), 4, labelled=False))
    found = view_of(store).search(query_for("red")[0], Page())
    assert (found.kinds, found.verdict) == (None, None)


def slow_twin(
    store: GalleryStore, query: FloatArray, *, label: str | None = None, block: int
) -> list[tuple[str, float, float]]:
    """Return id, code score and float score of all images, by a plain sort."""
    books = make_codebooks()
    table = store.dataset.to_table().sort_by("row")
    codes = np.array(table["code"].to_pylist(), np.uint8)
    scores = score_codes(books.lookup_tables(query[None]), codes)[0].tolist()
    floats = [
        plain_float_score(query, np.array(row), "unit") for row in table["embedding"].to_pylist()
    ]
    met: dict[float, int] = {}
    keys = []
    for place, (name, own) in enumerate(
        zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True)
    ):
        if label in (None, own):
            before = met.get(scores[place], 0)
            met[scores[place]] = before + 1
            rounded = round(floats[place], 5)
            keys.append((-scores[place], before // block, -rounded, place, name, floats[place]))
    return [(name, -score, own) for score, *_, name, own in sorted(keys)]


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the blocks of a tie so small that ties have several."""
    monkeypatch.setattr(ties, "TIE_ROWS", 7)
    monkeypatch.setattr(view_module, "TIE_ROWS", 7)
    monkeypatch.setattr(view_module, "_READ_ROWS", 10)
    return 7


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("blocks", ["whole ties", "few at once"])
def test_answers_are_those_of_a_plain_sort(
    tmp_path: Path, shards: int, blocks: str, request: pytest.FixtureRequest
) -> None:
    block = 256 if blocks == "whole ties" else request.getfixturevalue("few_at_once")
    store = make_ties(tmp_path / "g")
    view = GalleryView(store, make_codebooks(), LocalShards(shards))
    queries = make_queries(6)
    for label in (None, "a"):
        labels = () if label is None else (label,)
        twins = [slow_twin(store, query, label=label, block=block) for query in queries]
        for top_k, offset in ((1, 0), (5, 0), (9, 9), (30, 17), (100, 0), (4, 86), (3, 200)):
            page = Page(top_k=top_k, offset=offset, labels=labels)
            for found, twin in zip(view.search_many(queries, page), twins, strict=True):
                expected = twin[offset : offset + top_k]
                assert [hit.id for hit in found] == [name for name, *_ in expected]
                scores = [score for _, score, _ in expected]
                assert [hit.score for hit in found] == pytest.approx(scores, abs=1e-5)
        # Of what ties with the last one that is re-ranked, the best are.
        page = Page(top_k=6, offset=2, rerank=23, labels=labels)
        for found, twin in zip(view.search_many(queries, page), twins, strict=True):
            ranked = sorted(twin[:23], key=lambda each: -round(each[2], 5))[2:8]
            assert [hit.id for hit in found] == [name for name, *_ in ranked]


def test_a_row_that_is_left_out_is_missing_and_no_more(tmp_path: Path) -> None:
    store = make_ties(tmp_path / "g")
    view = GalleryView(store, make_codebooks(), LocalShards(3))
    query = make_queries(1)[0]
    twin = [name for name, *_ in slow_twin(store, query, block=256)]
    for name in (twin[0], twin[4], twin[-1]):
        place, _ = view.find(name)
        found = view.search(query, Page(top_k=5), leave_out=(place,))
        assert [hit.id for hit in found] == [each for each in twin if each != name][:5]


def test_without_embeddings_the_order_is_that_of_insertion(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n % 2) for n in range(20)])
    found = GalleryView(store, make_codebooks()).search(make_queries(1)[0], Page(top_k=10))
    assert [hit.id for hit in found] in ([f"i{n}" for n in range(start, 20, 2)] for start in (0, 1))


def test_few_embeddings_are_read_and_none_without_ties(
    tmp_path: Path, few_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_ties(tmp_path / "g")
    view = GalleryView(store, make_codebooks())
    read: list[int] = []
    plain = GalleryStore.embeddings_at

    def counted(store: GalleryStore, offsets: IntArray) -> NDArray[np.float16]:
        read.append(len(offsets))
        return plain(store, offsets)

    monkeypatch.setattr(GalleryStore, "embeddings_at", counted)
    for offset in range(0, TIED_ROWS, 5):
        read.clear()
        view.search(make_queries(1)[0], Page(top_k=5, offset=offset))
        assert sum(read) <= 5 + 2 * few_at_once
    alone = make_store(tmp_path / "other", keep_embeddings=True)
    vector = np.ones(DIM, np.float16)
    alone.put([replace(make_record(f"i{n}", n), embedding=vector) for n in range(60)])
    read.clear()
    GalleryView(alone, make_codebooks()).search(make_queries(1)[0], Page(top_k=40))
    assert not read
