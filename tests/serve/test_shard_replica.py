"""A process holds two versions and loads what it is asked for; replicas die and come back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from ray import cloudpickle

from made_up_galleries import make_codebooks, make_queries, make_record, make_store, make_views
from own_galleries import filled, fit_again, query_for
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery.shards import Request, Search, Shard, Shards
from phpq.gallery.view import GalleryView, Page
from phpq.serve._refusals import Refused
from phpq.serve.settings import Sharding
from phpq.serve.shard_replica import ShardHost, application_name, deployment_name
from served_galleries import reading_generations, wait_until_served
from shard_twins import twin_shards
from sure_galleries import coded_question, coded_store, sure_at

FACTS = Request("facts")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def grown(store: GalleryStore, name: str) -> int:
    store.put([make_record(name)])
    return store.version


def asked(host: ShardHost, version: int) -> int | None:
    """Ask for the rows of a version until it is there."""
    end = time.monotonic() + 30
    while (answers := host.answer(version, [FACTS])) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return int(answers[0].usage[0].sum())


def test_what_is_not_held_is_loaded_and_the_last_two_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    versions = [grown(store, f"i{n}") for n in range(4)]
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1)
    assert host.load().total == 4
    assert host.answer(versions[0], [FACTS]) is None  # it is not waited for
    assert asked(host, versions[0]) == 1
    assert list(host._held) == [versions[3], versions[0]]
    assert asked(host, versions[3]) == 4
    assert asked(host, versions[2]) == 3
    assert list(host._held) == [versions[3], versions[2]]
    assert host.load(versions[2]).total == 3


def test_a_version_that_nobody_asks_for_makes_room(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    old, new = grown(store, "a"), grown(store, "b")
    clock = Clock()
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1, clock=clock)
    host.load(old)
    host.load(new)
    clock.now = 50
    assert asked(host, new) == 2
    assert list(host._held) == [old, new]
    clock.now = 100
    assert asked(host, new) == 2
    assert list(host._held) == [new]
    clock.now = 1000
    assert asked(host, new) == 2
    assert list(host._held) == [new]


def test_a_version_that_is_gone_is_told_and_tried_again(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    old = grown(store, "a")
    grown(store, "b")
    store.compact()
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1)
    for _ in range(2):
        with pytest.raises(FormatError, match="phpq gallery verify"):
            asked(host, old)
        with pytest.raises(FormatError):
            host.load(old)
    assert asked(host, store.version) == 2


def test_a_request_that_fails_leaves_the_others(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    version = grown(store, "a")
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1)
    host.load(version)
    tables = make_codebooks().lookup_tables(make_queries(1))
    wrong = Request("search", (Search(tables, 1, where="colour = 1"),))
    answers = host.answer(version, [FACTS, wrong, FACTS])
    assert answers is not None
    assert answers[0].label_names == answers[2].label_names == ("a",)
    # Errors travel between processes as they are.
    error = cloudpickle.loads(cloudpickle.dumps(answers[1]))
    assert isinstance(error, ConfigError)
    assert "colour" in str(error)


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


def test_replicas_tell_the_kinds_of_one_index(tmp_path: Path) -> None:
    coded_store(tmp_path / "g")
    sure_at(tmp_path / "g", 0)
    shards, _ = twin_shards(tmp_path / "g", make_codebooks(), Sharding(shards=3))
    cut, one = view_of(tmp_path / "g", shards), view_of(tmp_path / "g")
    query, page = coded_question("red light")[0], Page(labels=("red light", "red dark"))
    found = cut.search(query, page)
    assert found == one.search(query, page)
    assert found.verdict is not None
    assert (found.verdict.by, found.verdict.sure is None) == ("kinds", False)
    # Counts travel between processes as they are.
    words = Shard(GalleryStore.open(tmp_path / "g"), make_codebooks()).label_codewords()
    again = cloudpickle.loads(cloudpickle.dumps(words))
    assert again.label_names == words.label_names
    assert [keys.tolist() for keys, _ in again.counts] == [k.tolist() for k, _ in words.counts]
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
    views = make_views(tmp_path / "g", shards=shards)
    views.reload()
    with reading_generations(views, 12) as readers:
        for generation in range(1, 7):
            store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
            if generation % 3 == 0:
                handles[generation % 2].kill(0.01)
            wait_until_served(views, store.version)
    shards.close()
    assert not readers.mixed
    assert len(readers.seen) > 1
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


def test_a_shard_has_the_codebooks_of_its_version(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    old = store.version
    fit_again(store, bits=24)
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1)
    shards = {version: host.load(version) for version in (old, store.version)}
    for version, shard in shards.items():
        there = GalleryStore.open(tmp_path / "g", version=version)
        tables = there.own_codebooks().lookup_tables(query_for("red"))
        view = GalleryView(there, make_codebooks())
        found = view.search_many(query_for("red"), Page(top_k=7))[0]
        assert shard.search(Search(tables, 7)).scores[0].tolist() == [hit.score for hit in found]
