"""Replicas without Ray: the same answers, one version an answer, and no wrong one when they die."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.gallery import GalleryStore
from phpq.serve.refusals import Refused
from phpq.serve.reload import Snapshots
from phpq.serve.shards.deployment import application_name, deployment_name
from phpq.serve.shards.settings import Sharding
from phpq.serve.snapshot import Page, Snapshot
from shard_twins import twin_shards


class Counts:
    def __init__(self) -> None:
        self.retried: list[int] = []
        self.restarted: list[int] = []
        self.failed: list[int] = []

    def shard_retried(self, shard: int) -> None:
        self.retried.append(shard)

    def shard_restarted(self, shard: int) -> None:
        self.restarted.append(shard)

    def shard_failed(self, shard: int) -> None:
        self.failed.append(shard)


def made_up(folder: Path, count: int = 60) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n * 7 % 16, year=n) for n in range(count)])
    return store


def test_replicas_answer_as_one_index(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), Sharding(shards=3))
    cut = Snapshot(tmp_path / "g", make_codebooks(), shards)
    one = Snapshot(tmp_path / "g", make_codebooks())
    for query in make_queries(5):
        page = Page(top_k=9, offset=4, where="year < 50")
        ours, expected = cut.search(query, page), one.search(query, page)
        assert [r.id for r in ours.records] == [r.id for r in expected.records]
        assert (ours.scores, ours.total) == (expected.scores, expected.total)
    assert shards.missing() == []
    handles[2].kill(60)
    assert shards.missing() == [2]
    shards.close()


def test_a_shard_that_dies_is_asked_again_and_no_answer_is_wrong(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    shards, handles = twin_shards(
        tmp_path / "g", make_codebooks(), Sharding(shards=2, retry_seconds=30)
    )
    counts = Counts()
    shards.report_to(counts)
    cut = Snapshot(tmp_path / "g", make_codebooks(), shards)
    one = Snapshot(tmp_path / "g", make_codebooks())
    queries = make_queries(8)
    expected = [[r.id for r in one.search(query, Page(top_k=20)).records] for query in queries]
    wrong: list[int] = []
    done: list[int] = []
    stop = threading.Event()

    def read(place: int) -> None:
        while not stop.is_set():
            found = [r.id for r in cut.search(queries[place], Page(top_k=20)).records]
            (done if found == expected[place] else wrong).append(place)

    readers = [threading.Thread(target=read, args=(place,)) for place in range(8)]
    for reader in readers:
        reader.start()
    for handle in (handles[0], handles[1], handles[0]):
        before = len(done)
        handle.kill(0.05)
        end = time.monotonic() + 30
        while len(done) < before + 50 and time.monotonic() < end:
            time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(done) >= 150
    assert set(counts.retried) == {0, 1}
    assert sorted(counts.restarted) == [0, 0, 1]
    assert not counts.failed
    assert max(max(handle.calls) for handle in handles) > 1  # some went together
    shards.close()


def test_a_shard_that_stays_away_is_a_503(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    sharding = Sharding(shards=2, retry_seconds=0.2)
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), sharding)
    cut = Snapshot(tmp_path / "g", make_codebooks(), shards)
    handles[1].kill(60)
    with pytest.raises(Refused, match=r"Shard 1 .* within 0.2 seconds") as caught:
        cut.search(make_queries(1)[0], Page())
    assert caught.value.status == 503
    handles[1].kill(0)
    assert len(cut.search(make_queries(1)[0], Page()).records) == 10
    shards.close()


def test_no_answer_mixes_versions_while_the_gallery_changes(tmp_path: Path) -> None:
    """Every commit moves all images to one generation; a shard that restarts joins in."""
    store = make_store(tmp_path / "g")
    names = [f"i{n}" for n in range(12)]
    store.put([make_record(name, n, generation=0) for n, name in enumerate(names)])
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), Sharding(shards=3))
    snapshots = Snapshots(tmp_path / "g", make_codebooks(), seconds=0.001, shards=shards)
    snapshots.start()
    stop = threading.Event()
    mixed: list[set[int]] = []
    generations: set[int] = set()
    query = make_queries(1)[0]

    def read() -> None:
        while not stop.is_set():
            found = snapshots.current.search(query, Page(top_k=12))
            seen = {record.metadata["generation"] for record in found.records}
            generations.update(seen)
            if len(seen) != 1 or len(found.records) != 12 or found.total != 12:
                mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(1, 7):
        store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
        if generation % 3 == 0:
            handles[generation % 2].kill(0.01)
        end = time.monotonic() + 30
        while snapshots.current.version < store.version and time.monotonic() < end:
            time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    snapshots.close()
    shards.close()
    assert not mixed
    assert len(generations) > 1
    assert snapshots.current.version == store.version


def test_names_tell_galleries_models_and_cuts_apart(tmp_path: Path) -> None:
    books = make_codebooks()
    names = {
        application_name(tmp_path / name, books, shards)
        for name in ("birds of 2024.gallery", "other")
        for shards in (1, 2)
    }
    assert len(names) == 4
    assert all(name.startswith("phpq-") and " " not in name for name in names)
    assert application_name(tmp_path / "other", books, 2) in names
    assert deployment_name(3) == "shard-3"
