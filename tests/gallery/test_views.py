"""The current view against a dictionary and a plain scan, whatever is written and when."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from made_up_galleries import (
    make_codebooks,
    make_queries,
    make_record,
    make_store,
    make_views,
    plain_scan,
    record_at,
)
from phpq.errors import FormatError
from phpq.gallery import GalleryStore, Record, views
from phpq.gallery.folder import new_manifest
from phpq.gallery.view import GalleryView, Page

NAMES = st.sampled_from([f"n{number}" for number in range(12)])
IMAGES = st.dictionaries(
    NAMES, st.tuples(st.integers(0, 63), st.sampled_from("ab"), st.integers(0, 3)), min_size=1
)
FILTERS: dict[str, Callable[[Record], bool]] = {
    "label = 'a'": lambda r: r.label == "a",
    "year >= 2 OR id = 'n0'": lambda r: bool(r.metadata["year"] >= 2 or r.id == "n0"),
    "label = 'none'": lambda _: False,
}


class GalleryLaw(RuleBasedStateMachine):
    """Any sequence of changes gives what a dictionary gives."""

    @initialize()
    def create(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="phpq-law-"))
        self.store = make_store(self.home / "g")
        self.views = make_views(self.home / "g")
        self.other = GalleryStore.open(self.home / "g")  # a second process, as it were
        self.expected: dict[str, Record] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def _expect(self, records: list[Record]) -> None:
        for record in records:
            self.expected.pop(record.id, None)  # a replaced image is the newest
            self.expected[record.id] = record

    @rule(images=IMAGES, elsewhere=st.booleans())
    def put(self, images: dict[str, tuple[int, str, int]], elsewhere: bool) -> None:
        records = [
            make_record(name, number, label=label, year=year)
            for name, (number, label, year) in images.items()
        ]
        if elsewhere:
            self.other.put(records)
            self.store.refresh()
        else:
            assert self.store.put(records) == len(self.expected.keys() & images.keys())
        self._expect(records)

    @rule(names=st.sets(NAMES, max_size=4))
    def delete(self, names: set[str]) -> None:
        assert self.store.delete(sorted(names)) == len(names & self.expected.keys())
        for name in names:
            self.expected.pop(name, None)

    @rule(where=st.sampled_from(sorted(FILTERS)))
    def delete_where(self, where: str) -> None:
        if "year" in where and "year" not in self.store.metadata_columns:
            return
        gone = [name for name, record in self.expected.items() if FILTERS[where](record)]
        assert self.store.delete(where=where) == len(gone)
        for name in gone:
            del self.expected[name]

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule()
    def reopen(self) -> None:
        self.store = GalleryStore.open(self.home / "g")
        self.views = make_views(self.home / "g")

    @invariant()
    def search_equals_the_plain_scan(self) -> None:
        if not hasattr(self, "expected"):
            return
        assert len(self.store) == len(self.expected)
        view = self.views.at(self.store.version)
        (query,) = make_queries(1, seed=len(self.expected))
        for where in (None, *FILTERS):
            if where and "year" in where and "year" not in self.store.metadata_columns:
                continue
            found = view.search(query, Page(top_k=5, where=where))
            kept = {n: r for n, r in self.expected.items() if not where or FILTERS[where](r)}
            wanted = plain_scan(kept, query, 5)
            assert [hit.id for hit in found] == [name for name, _ in wanted]
            assert [hit.score for hit in found] == pytest.approx([s for _, s in wanted], abs=1e-4)
            assert found.total == len(kept)
            for hit in found:
                expected = self.expected[hit.id]
                assert hit.label == expected.label
                assert view.find(hit.id)[1].code.tolist() == expected.code.tolist()


GalleryLaw.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=15,
    suppress_health_check=[HealthCheck.too_slow],
)
TestGalleryLaw = GalleryLaw.TestCase


def start(folder: Path, count: int = 8) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n) for n in range(count)])
    return store


def test_one_load_serves_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start(tmp_path / "g")
    held = make_views(tmp_path / "g")
    held.reload()
    loads: list[int] = []

    def counted(*arguments: object) -> GalleryView:
        loads.append(1)
        return GalleryView(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(views, "GalleryView", counted)
    store.put([make_record("new", 3)])
    newest = held.newest()
    threads = [threading.Thread(target=held.reload, kwargs={"at_least": newest}) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert held.current.version == newest
    assert held.renew(held.current) is held.current


def test_a_version_that_was_compacted_away_is_replaced(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    held = make_views(tmp_path / "g")
    held.reload()
    store.delete(["i0"])
    store.compact()
    assert held.read(lambda view: (len(view), record_at(view, 3).id)) == (7, "i4")


def test_damage_that_stays_is_not_hidden(tmp_path: Path) -> None:
    start(tmp_path / "g")
    held = make_views(tmp_path / "g")
    calls: list[GalleryView] = []

    def broken(view: GalleryView) -> None:
        calls.append(view)
        raise FormatError("damaged")

    with pytest.raises(FormatError, match="damaged"):
        held.read(broken)
    assert len(calls) == 1


def test_a_gallery_of_another_model_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    start(tmp_path / "g")
    held = make_views(tmp_path / "g")
    before = held.reload()
    shutil.rmtree(tmp_path / "g")
    GalleryStore.create(tmp_path / "g", new_manifest(make_codebooks(), "another"))
    with pytest.raises(FormatError, match="made anew"):
        held.reload()
    assert held.current is before


def test_a_version_can_be_named(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    held, version = make_views(tmp_path / "g"), store.version
    store.put([make_record("new", 3)])
    assert len(held.at(version)) == 8
    assert held.at(version) is held.current
    assert len(held.at(store.version)) == 9
