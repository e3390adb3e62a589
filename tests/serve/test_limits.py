"""Back-pressure and rates: what does not fit is refused at once, and places come back."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpq.serve import limits
from phpq.serve.limits import BoundedPool, RateLimit
from phpq.serve.refusals import Refused


def test_a_full_pool_refuses_at_once_and_places_come_back() -> None:
    release = threading.Event()
    pool = BoundedPool("tests", threads=1, waiting=1, seconds=30)

    async def scenario() -> None:
        running = [asyncio.ensure_future(pool.run(release.wait, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        assert pool.jobs == 2
        with pytest.raises(Refused, match="2 requests wait for tests") as caught:
            await pool.run(int)
        assert caught.value.status == 503
        assert caught.value.retry_after == 1
        release.set()
        assert await asyncio.gather(*running) == [True, True]
        assert await pool.run(sum, [1, 2]) == 3

    asyncio.run(scenario())
    pool.close()
    assert pool.jobs == 0


def test_a_late_job_is_refused_but_keeps_its_place_until_it_is_done() -> None:
    release = threading.Event()
    pool = BoundedPool("tests", threads=1, waiting=0, seconds=0.05)

    async def scenario() -> None:
        with pytest.raises(Refused, match=r"took more than 0\.05 seconds"):
            await pool.run(release.wait, 30)
        with pytest.raises(Refused, match="wait for tests"):
            await pool.run(int)
        release.set()
        while pool.jobs:
            await asyncio.sleep(0.01)
        assert await pool.run(int) == 0

    asyncio.run(scenario())
    pool.close()

    async def after() -> None:
        with pytest.raises(Refused, match="shutting down"):
            await pool.run(int)

    asyncio.run(after())
    assert pool.jobs == 0


def test_errors_pass_and_a_panic_becomes_one() -> None:
    pool = BoundedPool("tests", threads=1, waiting=0, seconds=30)

    class PanicException(BaseException):  # as compiled libraries raise it
        pass

    def panic() -> None:
        raise PanicException("index out of range")

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="PanicException: index out of range"):
            await pool.run(panic)

    asyncio.run(scenario())
    pool.close()


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 10),
)
def test_no_more_pass_than_burst_and_rate_allow(gaps: list[float], rate: int, burst: int) -> None:
    now, passed = 0.0, 0
    refusals: list[Refused] = []
    limit = RateLimit(rate, burst, clock=lambda: now)
    for gap in gaps:
        now += gap
        try:
            limit.take("a")
            passed += 1
        except Refused as refusal:
            refusals.append(refusal)
        assert passed <= burst + rate * now + 1e-6
    assert passed + len(refusals) == len(gaps)
    assert all(refusal.status == 429 and (refusal.retry_after or 0) >= 1 for refusal in refusals)


def test_waiting_as_told_lets_a_client_in_again_and_others_do_not_suffer() -> None:
    now = 0.0
    limit = RateLimit(0.5, 1, clock=lambda: now)
    limit.take("a")
    with pytest.raises(Refused, match="Try again in 2 s") as caught:
        limit.take("a")
    limit.take("b")
    now += caught.value.retry_after or 0
    limit.take("a")


def test_no_rate_is_no_limit_and_few_clients_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = RateLimit(0, 1)
    for _ in range(100):
        free.take("a")
    monkeypatch.setattr(limits, "_MOST_CLIENTS", 3)
    limit = RateLimit(1, 1)
    for number in range(10):
        limit.take(str(number))
    assert len(limit._buckets) == 3
