"""Requests that wait go together, failed calls are repeated; and a real cluster answers as one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from phpq.cluster.connection import import_ray
from phpq.errors import ConfigError
from phpq.gallery import Gallery
from phpq.gallery.shards import Request
from phpq.serve._refusals import Refused
from phpq.serve.ray_shards import (
    Dispatcher,
    RayShards,
    UnavailableError,
    _can_be_joined,
    _wait_for_shards,
    ray_shards,
)
from phpq.serve.settings import Sharding
from served_galleries import TOKEN, copy_gallery, ids, new_photo, served

FACTS = Request("facts")


def dispatcher(
    send: Callable[[int, Sequence[Request], float], list[Any]],
    counts: Counter[str] | None = None,
    *,
    seconds: float = 30.0,
) -> Dispatcher:
    told = Counter[str]() if counts is None else counts

    def event(kind: str, shard: int) -> None:
        assert shard == 4
        told[kind] += 1

    return Dispatcher(4, send, calls=1, seconds=seconds, events=event)


def test_requests_that_wait_go_together_by_version() -> None:
    calls: list[tuple[int, int]] = []
    busy = threading.Event()

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        calls.append((version, len(requests)))
        busy.wait(30)
        return [version] * len(requests)

    way = dispatcher(send)
    first = way.ask(1, FACTS)
    while not calls:
        time.sleep(0.001)
    others = [way.ask(version, FACTS) for version in [1] * 100 + [2] * 3 + [1] * 2]
    busy.set()
    assert way.answer(first) == 1
    assert [way.answer(future) for future in others] == [1] * 100 + [2] * 3 + [1] * 2
    assert calls == [(1, 1), (1, 64), (1, 36), (2, 3), (1, 2)]
    way.close()


def test_a_failed_call_is_made_again() -> None:
    counts, left = Counter[str](), [3]

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        left[0] -= 1
        if left[0] >= 0:
            raise UnavailableError("dead")
        return ["alive"] * len(requests)

    way = dispatcher(send, counts)
    assert way.answer(way.ask(1, FACTS)) == "alive"
    assert counts == {"retries": 3}
    way.close()


def test_in_the_end_it_is_a_503_and_the_thread_goes_on() -> None:
    counts, dead = Counter[str](), [True]

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        assert 0 < seconds <= 0.3
        if dead[0]:
            raise UnavailableError("dead")
        return [1] * len(requests)

    way = dispatcher(send, counts, seconds=0.3)
    start = time.monotonic()
    asked = [way.ask(1, FACTS) for _ in range(3)]
    for future in asked:
        with pytest.raises(Refused, match="Shard 4 of the gallery did not answer") as caught:
            way.answer(future)
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "5")
    assert time.monotonic() - start >= 0.3
    assert counts["failures"] == 3
    assert counts["retries"] >= 2
    dead[0] = False
    assert way.answer(way.ask(1, FACTS)) == 1
    way.close()


def test_what_no_thread_gets_to_is_given_up_too() -> None:
    stuck = threading.Event()

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        stuck.wait(30)
        return [1] * len(requests)

    way = dispatcher(send, seconds=0.1)
    way.ask(1, FACTS)
    time.sleep(0.05)
    with pytest.raises(Refused, match="did not answer"):
        way.answer(way.ask(1, FACTS))
    stuck.set()
    way.close()


def test_what_the_shard_says_is_raised_and_mistakes_are_not_repeated() -> None:
    calls: list[int] = []

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        calls.append(version)
        if version == 2:
            raise ZeroDivisionError
        return [ConfigError("no such column")]

    way = dispatcher(send)
    with pytest.raises(ConfigError, match="no such column"):
        way.answer(way.ask(1, FACTS))
    with pytest.raises(ZeroDivisionError):
        way.answer(way.ask(2, FACTS))
    assert calls == [1, 2]
    way.close()


def test_closing_refuses_what_waits() -> None:
    started, stop = threading.Event(), threading.Event()

    def send(version: int, requests: Sequence[Request], seconds: float) -> list[Any]:
        started.set()
        stop.wait(30)
        raise UnavailableError("gone")

    way = dispatcher(send)
    running = way.ask(1, FACTS)
    started.wait(30)
    waiting = way.ask(1, FACTS)
    way.close()
    stop.set()
    for future in (waiting, running):
        with pytest.raises(Refused, match="shutting down"):
            way.answer(future)
    with pytest.raises(Refused, match="shutting down"):
        way.ask(1, FACTS)


SHARDING = Sharding(shards=2, retry_seconds=60)
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_gallery(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def shards(folder: Path) -> Iterator[RayShards]:
    codebooks = Gallery.open(folder, device="cpu").model.codebooks
    with ray_shards(folder, codebooks, SHARDING) as shards:
        yield shards


@pytest.fixture(scope="module")
def pair(folder: Path, shards: RayShards) -> Iterator[tuple[TestClient, TestClient]]:
    """Yield clients of a server with shards on the cluster, and of one without."""
    settings: dict[str, Any] = {"token": TOKEN, "writable": True}
    with served(folder, shards=shards, **settings) as cut, served(folder, **settings) as one:
        yield cut, one


def plain(answer: Any) -> Any:
    """Leave out what differs from call to call."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items() if key != "seconds"}
    return [plain(value) for value in answer] if isinstance(answer, list) else answer


def same(cut: TestClient, one: TestClient, method: str, path: str, **options: Any) -> None:
    ours, theirs = cut.request(method, path, **options), one.request(method, path, **options)
    assert ours.status_code == theirs.status_code, (path, ours.text)
    if ours.status_code == 200:
        assert plain(ours.json()) == plain(theirs.json()), path


def replica_of(shard: int) -> tuple[str, str]:
    """Return the name and the namespace of the actor that is a shard's replica."""
    found = [
        (entry["name"], entry["namespace"])
        for entry in import_ray().util.list_named_actors(all_namespaces=True)
        if f"#shard-{shard}#" in entry["name"]
    ]
    assert len(found) == 1, found
    return found[0]


@slow
def test_every_answer_is_that_of_one_server(pair: tuple[TestClient, TestClient]) -> None:
    name = ids()[5]
    for path, params in (
        ("/api/v1/search", {"id": name, "top_k": 9}),
        ("/api/v1/search", {"id": name, "top_k": 4, "offset": 3, "label": ["owl", "wren"]}),
        ("/api/v1/search", {"id": name, "where": "year < 2015", "rerank": 15}),
        ("/api/v1/search", {"code": "00010203", "top_k": 50}),
        ("/api/v1/search", {"id": name, "where": "colour = 1"}),
        ("/api/v1/search", {"id": "none"}),
        ("/api/v1/info", {}),
        ("/api/v1/labels", {}),
        ("/api/v1/item", {"id": name}),
        ("/api/v1/map", {"limit": 7}),
        ("/api/v1/codebooks", {}),
        ("/api/v1/codebooks/1/2", {"limit": 3}),
        ("/api/v1/explain", {"hit_id": name, "query_id": ids()[20]}),
        ("/ready", {}),
    ):
        same(*pair, "GET", path, params=params)
    same(*pair, "POST", "/api/v1/search", files={"image": new_photo(1)}, data={"top_k": 5})
    queries = [{"id": id} for id in ids()[:12]]
    same(*pair, "POST", "/api/v1/search/batch", json={"queries": queries, "top_k": 20})


@slow
def test_another_server_joins_the_shards_and_leaves_them(
    folder: Path, pair: tuple[TestClient, TestClient]
) -> None:
    codebooks = Gallery.open(folder, device="cpu").model.codebooks
    with ray_shards(folder, codebooks, SHARDING) as joined, served(folder, shards=joined) as other:
        same(other, pair[1], "GET", "/api/v1/search", params={"id": ids()[1]})
    same(*pair, "GET", "/api/v1/search", params={"id": ids()[2]})


@slow
def test_what_is_written_is_found_by_the_next_search(pair: tuple[TestClient, TestClient]) -> None:
    cut, one = pair
    headers = {"Authorization": f"Bearer {TOKEN}"}
    added = cut.post(
        "/api/v1/items", files={"image": new_photo(9)}, data={"id": "new"}, headers=headers
    ).json()
    assert cut.get("/api/v1/search", params={"id": "new"}).status_code == 200
    end = time.monotonic() + 60
    while one.get("/ready").json()["version"] < added["version"] and time.monotonic() < end:
        time.sleep(0.05)
    same(cut, one, "GET", "/api/v1/search", params={"id": "new", "top_k": 30})


@slow
def test_a_killed_replica_comes_back_and_no_answer_is_wrong(
    pair: tuple[TestClient, TestClient],
) -> None:
    cut, one = pair
    expected = {
        name: plain(one.get("/api/v1/search", params={"id": name}).json()) for name in ids()[:6]
    }
    wrong: list[Any] = []
    answers: list[float] = []
    stop = threading.Event()

    def read(name: str) -> None:
        while not stop.is_set():
            answer = cut.get("/api/v1/search", params={"id": name})
            answers.append(time.monotonic())
            if answer.status_code != 200 or plain(answer.json()) != expected[name]:
                wrong.append((answer.status_code, answer.text))

    readers = [threading.Thread(target=read, args=(name,)) for name in expected]
    for reader in readers:
        reader.start()
    try:
        time.sleep(0.5)
        killed = replica_of(1)
        ray = import_ray()
        ray.kill(ray.get_actor(*killed))  # at once, as a signal would
        moment = time.monotonic()
        while not any(at > moment + 0.5 for at in answers[-6:]) and time.monotonic() < moment + 60:
            time.sleep(0.05)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert replica_of(1) != killed
    text = cut.get("/metrics").text
    assert 'phpq_shard_restarts_total{shard="1"} 1.0' in text
    assert "phpq_shard_failures_total{" not in text


@slow
def test_a_cluster_that_is_too_small_is_said_at_once(folder: Path, shards: RayShards) -> None:
    codebooks = Gallery.open(folder, device="cpu").model.codebooks
    with (
        pytest.raises(ConfigError, match=r"--shards 50 --replicas 2 take 100 processors.*has \d+,"),
        ray_shards(folder, codebooks, Sharding(shards=50, replicas=2)),
    ):
        pass


def entry(value: str, message: str = "") -> SimpleNamespace:
    return SimpleNamespace(status=SimpleNamespace(value=value), message=message)


def test_shards_are_joined_where_they_run_or_are_about_to() -> None:
    def serve(*statuses: str) -> Any:
        left = list(statuses)

        def status() -> SimpleNamespace:
            value = left.pop(0)
            return SimpleNamespace(applications={"app": entry(value)} if value else {})

        return SimpleNamespace(status=status)

    assert _can_be_joined(serve("RUNNING"), "app")
    assert _can_be_joined(serve("DEPLOYING"), "app")
    assert not _can_be_joined(serve(""), "app")
    assert not _can_be_joined(serve("DEPLOY_FAILED"), "app")
    assert not _can_be_joined(serve("DELETING", "DELETING", ""), "app")


@pytest.mark.parametrize("status", ["DEPLOY_FAILED", "DEPLOYING"])
def test_shards_that_cannot_start_are_named(status: str) -> None:
    found = entry(status)
    found.deployments = {
        "shard-0": entry("HEALTHY"),
        "shard-1": entry("UNHEALTHY", "Traceback\n  phpq.errors.FormatError: no gallery\n"),
    }
    serve = SimpleNamespace(status=lambda: SimpleNamespace(applications={"app": found}))
    sharding = Sharding(shards=3, start_seconds=0.1)
    with pytest.raises(ConfigError, match=r"The shards 1, 2 did not start.*no gallery.*same path"):
        _wait_for_shards(serve, "app", sharding)
