"""A frozen gallery: the answers of the library, filters, paging, names, and no change ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import make_codebooks, make_queries, make_record, make_store, plain_scan
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery import Gallery, Record
from phpq.serve.snapshot import Page, Snapshot
from served_galleries import ids, shared_gallery


def made_up(folder: Path, count: int = 40) -> tuple[Snapshot, dict[str, Record]]:
    store = make_store(folder)
    records = [
        make_record(f"i{n}", n * 7 % 64, label=("a", "b", None)[n % 3], year=n)
        for n in range(count)
    ]
    store.put(records)
    return Snapshot(folder, make_codebooks()), {record.id: record for record in records}


def test_hits_are_those_of_a_plain_scan(tmp_path: Path) -> None:
    snapshot, records = made_up(tmp_path / "g")
    for query in make_queries(5):
        found = snapshot.search(query, Page(top_k=7))
        expected = plain_scan(records, query, 7)
        assert [record.id for record in found.records] == [name for name, _ in expected]
        assert found.scores == pytest.approx([score for _, score in expected], abs=2e-5)
        assert found.total == 40
        assert max(found.scores) <= found.best + 1e-6


def test_pages_put_together_are_one_long_answer(tmp_path: Path) -> None:
    snapshot, _ = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    whole = [r.id for r in snapshot.search(query, Page(top_k=40)).records]
    pages = [snapshot.search(query, Page(top_k=9, offset=start)) for start in range(0, 50, 9)]
    assert [r.id for page in pages for r in page.records] == whole
    assert {page.total for page in pages} == {40}


def test_filters_hold_and_are_counted(tmp_path: Path) -> None:
    snapshot, records = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    for page, expected in (
        (Page(top_k=50, where="year > 30"), {n for n in range(40) if n > 30}),
        (Page(top_k=50, labels=("a",)), {n for n in range(40) if n % 3 == 0}),
        (Page(top_k=50, labels=("a", "b"), where="year < 6"), {0, 1, 3, 4}),
        (Page(top_k=50, labels=("none",)), set()),
        (Page(top_k=50, where="label IS NULL"), {n for n in range(40) if n % 3 == 2}),
    ):
        for _ in range(2):  # the second time the answer was kept
            found = snapshot.search(query, page)
            assert {record.id for record in found.records} == {f"i{n}" for n in expected}
            assert found.total == len(expected)
    assert snapshot.label_names == ("a", "b")
    assert len(records) == len(snapshot)


def test_few_answers_are_kept(tmp_path: Path) -> None:
    snapshot, _ = made_up(tmp_path / "g")
    for year in range(30):
        snapshot.remember(("key", year), lambda: 1)
    assert len(snapshot._kept) == 8
    assert snapshot.remember(("key", 29), lambda: 2) == 1


def test_an_image_is_found_by_id_and_by_uri(tmp_path: Path) -> None:
    snapshot, records = made_up(tmp_path / "g")
    for place, record in enumerate(records.values()):
        assert snapshot.find(record.id)[0] == place
        assert snapshot.find_uri(str(record.uri))[0] == place
        assert snapshot.record(place).id == record.id
        assert snapshot.find(record.id)[0] == place  # now from what is remembered
    places = np.array([3, 0, 39])
    for image, record in zip(snapshot.glances(places), snapshot.records(places), strict=True):
        assert (image.id, image.label) == (record.id, record.label)
        assert np.array_equal(image.code, record.code)
    assert not snapshot.glances(places[:0])
    assert not snapshot.records(places[:0])
    with pytest.raises(UnknownNameError, match="There is no image 'I1'"):
        snapshot.find("I1")
    with pytest.raises(UnknownNameError, match="Only images of the gallery"):
        snapshot.find_uri("/etc/passwd")


def test_names_hold_after_deletion_and_replacement(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    store = make_store(tmp_path / "other")
    store.put([make_record(f"i{n}", n) for n in range(20)])
    store.delete([f"i{n}" for n in range(0, 20, 3)])
    store.put([make_record("i4", 60), make_record("i40", 1)])
    store.compact()
    snapshot = Snapshot(tmp_path / "other", make_codebooks())
    kept = {f"i{n}" for n in range(20) if n % 3} | {"i40"}
    assert {snapshot.record(place).id for place in range(len(snapshot))} == kept
    for name in kept:
        place, _ = snapshot.find(name)
        assert snapshot.record(place).id == name


def test_nothing_changes_while_others_write(tmp_path: Path) -> None:
    snapshot, _ = made_up(tmp_path / "g")
    query = make_queries(1)[0]
    before = [r.id for r in snapshot.search(query, Page(top_k=40)).records]
    store = make_store(tmp_path / "unused")
    store = type(store).open(tmp_path / "g")
    store.delete(before[:5])
    store.put([make_record("new", 0)])
    assert [r.id for r in snapshot.search(query, Page(top_k=40)).records] == before
    with pytest.raises(UnknownNameError):
        snapshot.find("new")


def test_a_search_by_id_is_the_one_of_the_library() -> None:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    snapshot = Snapshot(shared_gallery(), gallery.model.codebooks)
    for rerank in (0, 12):
        for name in ids()[:4]:
            place, _ = snapshot.find(name)
            query = snapshot.query_of(snapshot.record(place))
            found = snapshot.search(query, Page(top_k=5, rerank=rerank), leave_out=place)
            expected = gallery.search_id(name, 5, rerank=rerank)
            assert [record.id for record in found.records] == [hit.id for hit in expected]
            assert found.scores == pytest.approx([hit.score for hit in expected])
            assert found.total == 23
            assert max(found.scores) <= found.best + 1e-5


def test_what_the_gallery_refuses_is_refused_in_the_same_words(tmp_path: Path) -> None:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    snapshot = Snapshot(shared_gallery(), gallery.model.codebooks)
    query = snapshot.query_of(snapshot.record(0))
    with pytest.raises(ConfigError) as ours:
        snapshot.search(query, Page(top_k=9, rerank=3))
    with pytest.raises(ConfigError) as theirs:
        gallery.search(query, 9, rerank=3)
    assert str(ours.value) == str(theirs.value)
    bare, _ = made_up(tmp_path / "g")
    with pytest.raises(ConfigError, match=r"rerank=9 needs float embeddings.*keeps none"):
        bare.search(make_queries(1)[0], Page(rerank=9))


def test_an_empty_gallery_has_no_hits(tmp_path: Path) -> None:
    make_store(tmp_path / "g")
    snapshot = Snapshot(tmp_path / "g", make_codebooks())
    found = snapshot.search(make_queries(1)[0], Page())
    assert (found.records, found.total, len(snapshot)) == ((), 0, 0)
    assert snapshot.columns == {"id": "string", "label": "string"}
