"""Replicas without Ray: the same answers, one version an answer, and no wrong one when they die."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.gallery import GalleryStore
from phpq.gallery.shards import Shards
from phpq.gallery.view import GalleryView, Page
from phpq.gallery.views import Views
from phpq.serve.refusals import Refused
from phpq.serve.reload import Follower
from phpq.serve.shards.deployment import application_name, deployment_name
from phpq.serve.shards.settings import Sharding
from shard_twins import twin_shards


def view_of(folder: Path, shards: Shards | None = None) -> GalleryView:
    return GalleryView(GalleryStore.open(folder), make_codebooks(), shards)


def made_up(folder: Path, count: int = 60) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n * 7 % 16, year=n) for n in range(count)])
    return store


def test_replicas_answer_as_one_index(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), Sharding(shards=3))
    cut = view_of(tmp_path / "g", shards)
    one = view_of(tmp_path / "g")
    for query in make_queries(5):
        page = Page(top_k=9, offset=4, where="year < 50")
        assert cut.search(query, page) == one.search(query, page)
    assert shards.missing() == []
    handles[2].kill(60)
    assert shards.missing() == [2]
    shards.close()


def test_a_shard_that_dies_is_asked_again_and_no_answer_is_wrong(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    shards, handles = twin_shards(
        tmp_path / "g", make_codebooks(), Sharding(shards=2, retry_seconds=30)
    )
    events: list[tuple[str, int]] = []
    shards.report_to(lambda event, shard: events.append((event, shard)))
    cut = view_of(tmp_path / "g", shards)
    one = view_of(tmp_path / "g")
    queries = make_queries(8)
    expected = [one.search(query, Page(top_k=20)) for query in queries]
    wrong: list[int] = []
    done: list[int] = []
    stop = threading.Event()

    def read(place: int) -> None:
        while not stop.is_set():
            found = cut.search(queries[place], Page(top_k=20))
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
    assert {shard for event, shard in events if event == "retries"} == {0, 1}
    assert sorted(shard for event, shard in events if event == "restarts") == [0, 0, 1]
    assert not [event for event, _ in events if event == "failures"]
    assert max(max(handle.calls) for handle in handles) > 1  # some went together
    shards.close()


def test_a_shard_that_stays_away_is_a_503(tmp_path: Path) -> None:
    made_up(tmp_path / "g")
    sharding = Sharding(shards=2, retry_seconds=0.2)
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), sharding)
    cut = view_of(tmp_path / "g", shards)
    handles[1].kill(60)
    with pytest.raises(Refused, match=r"Shard 1 .* within 0.2 seconds") as caught:
        cut.search(make_queries(1)[0], Page())
    assert caught.value.status == 503
    handles[1].kill(0)
    assert len(cut.search(make_queries(1)[0], Page())) == 10
    shards.close()


def test_no_answer_mixes_versions_while_the_gallery_changes(tmp_path: Path) -> None:
    """Every commit moves all images to one generation; a shard that restarts joins in."""
    store = make_store(tmp_path / "g")
    names = [f"i{n}" for n in range(12)]
    store.put([make_record(name, n, generation=0) for n, name in enumerate(names)])
    shards, handles = twin_shards(tmp_path / "g", make_codebooks(), Sharding(shards=3))
    views = Views(tmp_path / "g", make_codebooks(), shards=shards)
    views.reload()
    follower = Follower(views, seconds=0.001)
    follower.start()
    stop = threading.Event()
    mixed: list[set[int]] = []
    generations: set[int] = set()
    query = make_queries(1)[0]

    def read() -> None:
        while not stop.is_set():
            found = views.current.search(query, Page(top_k=12))
            seen = {hit.metadata["generation"] for hit in found}
            generations.update(seen)
            if len(seen) != 1 or len(found) != 12 or found.total != 12:
                mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(1, 7):
        store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
        if generation % 3 == 0:
            handles[generation % 2].kill(0.01)
        end = time.monotonic() + 30
        while views.current.version < store.version and time.monotonic() < end:
            time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    follower.close()
    shards.close()
    assert not mixed
    assert len(generations) > 1
    assert views.current.version == store.version


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
