"""Requests that wait go together; failed calls are repeated, for a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phpq.errors import ConfigError
from phpq.serve.refusals import Refused
from phpq.serve.shards.courier import Courier, UnavailableError
from phpq.serve.shards.host import Failure
from phpq.serve.shards.requests import Describe, Request


class Counts:
    def __init__(self) -> None:
        self.retried, self.failed = 0, 0

    def shard_retried(self, shard: int) -> None:
        self.retried += 1

    def shard_restarted(self, shard: int) -> None: ...

    def shard_failed(self, shard: int) -> None:
        self.failed += 1


def courier(
    send: Callable[[int, Sequence[Request[Any]], float], list[Any]],
    counts: Counts | None = None,
    *,
    lanes: int = 1,
    seconds: float = 30.0,
) -> Courier:
    return Courier(4, send, lanes=lanes, seconds=seconds, events=counts or Counts())


def test_requests_that_wait_go_together_by_version() -> None:
    calls: list[tuple[int, int]] = []
    busy = threading.Event()

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        calls.append((version, len(requests)))
        busy.wait(30)
        return [version] * len(requests)

    way = courier(send)
    first = way.ask(1, Describe())
    while not calls:
        time.sleep(0.001)
    others = [way.ask(version, Describe()) for version in [1] * 100 + [2] * 3 + [1] * 2]
    busy.set()
    assert way.answer(first) == 1
    assert [way.answer(future) for future in others] == [1] * 100 + [2] * 3 + [1] * 2
    assert calls == [(1, 1), (1, 64), (1, 36), (2, 3), (1, 2)]
    way.close()


def test_a_failed_call_is_made_again() -> None:
    counts, left = Counts(), [3]

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        left[0] -= 1
        if left[0] >= 0:
            raise UnavailableError("dead")
        return ["alive"] * len(requests)

    way = courier(send, counts)
    assert way.answer(way.ask(1, Describe())) == "alive"
    assert (counts.retried, counts.failed) == (3, 0)
    way.close()


def test_in_the_end_it_is_a_503_and_the_lane_goes_on() -> None:
    counts, dead = Counts(), [True]

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        assert 0 < seconds <= 0.3
        if dead[0]:
            raise UnavailableError("dead")
        return [1] * len(requests)

    way = courier(send, counts, seconds=0.3)
    start = time.monotonic()
    asked = [way.ask(1, Describe()) for _ in range(3)]
    for future in asked:
        with pytest.raises(Refused, match="Shard 4 of the gallery did not answer") as caught:
            way.answer(future)
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "5")
    assert time.monotonic() - start >= 0.3
    assert counts.failed == 3
    assert counts.retried >= 2
    dead[0] = False
    assert way.answer(way.ask(1, Describe())) == 1
    way.close()


def test_what_no_lane_gets_to_is_given_up_too() -> None:
    stuck = threading.Event()

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        stuck.wait(30)
        return [1] * len(requests)

    way = courier(send, seconds=0.1)
    way.ask(1, Describe())
    time.sleep(0.05)
    with pytest.raises(Refused, match="did not answer"):
        way.answer(way.ask(1, Describe()))
    stuck.set()
    way.close()


def test_what_the_shard_says_is_raised_and_mistakes_are_not_repeated() -> None:
    calls: list[int] = []

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        calls.append(version)
        if version == 2:
            raise ZeroDivisionError
        return [Failure("ConfigError", "no such column")]

    way = courier(send)
    with pytest.raises(ConfigError, match="no such column"):
        way.answer(way.ask(1, Describe()))
    with pytest.raises(ZeroDivisionError):
        way.answer(way.ask(2, Describe()))
    assert calls == [1, 2]
    way.close()


def test_closing_refuses_what_waits() -> None:
    started, stop = threading.Event(), threading.Event()

    def send(version: int, requests: Sequence[Request[Any]], seconds: float) -> list[Any]:
        started.set()
        stop.wait(30)
        raise UnavailableError("gone")

    way = courier(send)
    running = way.ask(1, Describe())
    started.wait(30)
    waiting = way.ask(1, Describe())
    way.close()
    stop.set()
    for future in (waiting, running):
        with pytest.raises(Refused, match="shutting down"):
            way.answer(future)
    with pytest.raises(Refused, match="shutting down"):
        way.ask(1, Describe())
