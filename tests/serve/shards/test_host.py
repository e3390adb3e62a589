"""A process holds two versions, loads what it is asked for, and says what it cannot have."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ray import cloudpickle

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery.shards import Request, Search
from phpq.serve.shards.host import ShardHost

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
    assert host.versions == [versions[3], versions[0]]
    assert asked(host, versions[3]) == 4
    assert asked(host, versions[2]) == 3
    assert host.versions == [versions[3], versions[2]]
    assert host.load(versions[2]).total == 3
    host.close()


def test_a_version_that_nobody_asks_for_makes_room(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    old, new = grown(store, "a"), grown(store, "b")
    clock = Clock()
    host = ShardHost(tmp_path / "g", make_codebooks(), 0, 1, clock=clock)
    host.load(old)
    host.load(new)
    clock.now = 50
    assert asked(host, new) == 2
    assert host.versions == [old, new]
    clock.now = 100
    assert asked(host, new) == 2
    assert host.versions == [new]
    clock.now = 1000
    assert asked(host, new) == 2
    assert host.versions == [new]
    host.close()


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
    host.close()


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
    host.close()
