"""The codes in memory against a dictionary and a plain scan, whatever is written and when."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from made_up_galleries import make_codebooks, make_queries, make_record, make_store, plain_scan
from phpq.errors import ConfigError
from phpq.gallery import GalleryStore, Record
from phpq.gallery.live import LiveCodes

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
        self.live = LiveCodes(self.store, make_codebooks())
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
            written = self.live.put(records)
            assert len(written.replaced) == len(self.expected.keys() & images.keys())
        self._expect(records)

    @rule(names=st.sets(NAMES, max_size=4))
    def delete(self, names: set[str]) -> None:
        assert self.live.delete(sorted(names)) == len(names & self.expected.keys())
        for name in names:
            self.expected.pop(name, None)

    @rule(where=st.sampled_from(sorted(FILTERS)))
    def delete_where(self, where: str) -> None:
        if "year" in where and "year" not in self.store.metadata_columns:
            return
        gone = [name for name, record in self.expected.items() if FILTERS[where](record)]
        assert self.live.delete(where=where) == len(gone)
        for name in gone:
            del self.expected[name]

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule()
    def reopen(self) -> None:
        self.store = GalleryStore.open(self.home / "g")
        self.live = LiveCodes(self.store, make_codebooks())

    @invariant()
    def search_equals_the_plain_scan(self) -> None:
        if not hasattr(self, "expected"):
            return
        assert len(self.store) == len(self.expected)
        (query,) = queries = make_queries(1, seed=len(self.expected))
        for where in (None, *FILTERS):
            if where and "year" in where and "year" not in self.store.metadata_columns:
                continue
            found = self.live.search(queries, 5, where=where)
            rows = found.ids[0][found.ids[0] >= 0]
            records = self.store.fetch(rows)
            kept = {n: r for n, r in self.expected.items() if not where or FILTERS[where](r)}
            wanted = plain_scan(kept, query, 5)
            assert [record.id for record in records] == [name for name, _ in wanted]
            np.testing.assert_allclose(
                found.scores[0][: len(rows)], [score for _, score in wanted], atol=1e-4
            )
            for record in records:
                assert record.label == self.expected[record.id].label
                assert record.code.tolist() == self.expected[record.id].code.tolist()


GalleryLaw.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestGalleryLaw = GalleryLaw.TestCase


def test_an_index_of_mostly_deleted_rows_is_made_anew(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    live = LiveCodes(store, make_codebooks())
    live.search(make_queries(1))
    live.put([make_record(str(i), i) for i in range(1500)])
    before = live.search(make_queries(2), 7, where="label = 'a'")
    assert live.delete(where="row >= 300") == 1200
    found = live.search(make_queries(2), 300)
    assert (found.ids >= 0).all()
    assert live.memory_bytes() < 300 * 40
    kept = [row for row in before.ids[0].tolist() if row < 300]
    assert [row for row in found.ids[0].tolist() if row in kept] == kept


def test_an_empty_gallery_finds_nothing(tmp_path: Path) -> None:
    live = LiveCodes(make_store(tmp_path / "g"), make_codebooks())
    found = live.search(make_queries(2), 3)
    assert (found.ids == -1).all()
    assert np.isneginf(found.scores).all()
    with pytest.raises(ConfigError, match="cannot be used"):
        live.search(make_queries(1), 3, where="nope = 1")


def test_numbers_of_deleted_rows_do_not_confuse(tmp_path: Path) -> None:
    live = LiveCodes(make_store(tmp_path / "g"), make_codebooks())
    other = LiveCodes(GalleryStore.open(tmp_path / "g"), make_codebooks())
    for turn in range(3):
        for user in (live, other):
            user.search(make_queries(1))
            user.put([make_record("x", turn), make_record("y", turn)])
            assert (user.search(make_queries(1), 2).ids >= 0).all()
            assert (user.search(make_queries(1), 2, where="id = 'x'").ids >= 0).sum() == 1
            assert user.delete(["y"]) == 1
            assert (user.search(make_queries(1), 2).ids >= 0).sum() == 1
