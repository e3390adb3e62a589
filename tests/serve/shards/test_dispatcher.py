"""Requests that wait go together; failed calls are repeated, for a bounded time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phpq.errors import ConfigError
from phpq.gallery.shards import Request
from phpq.serve.refusals import Refused
from phpq.serve.shards.dispatcher import Dispatcher, UnavailableError

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
