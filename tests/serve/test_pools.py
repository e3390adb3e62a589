"""Pools refuse at once what does not fit; who waits for the model shares a batch."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from phpq.codes import FloatArray
from phpq.serve._pools import BoundedPool, Embedder
from phpq.serve._refusals import Refused


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


PixelArray = NDArray[np.uint8]


def square(value: int) -> PixelArray:
    return np.full((3, 2, 2), value, np.uint8)


def mean(pixels: PixelArray) -> FloatArray:
    means: FloatArray = pixels.reshape(len(pixels), -1).mean(axis=1, dtype=np.float32)[:, None]
    return means


def test_everybody_gets_their_own_answer_and_waiting_ones_share_a_batch() -> None:
    sizes: list[int] = []
    first, release = threading.Event(), threading.Event()

    def embed(pixels: PixelArray) -> FloatArray:
        sizes.append(len(pixels))
        if not first.is_set():
            first.set()
            release.wait(30)
        return mean(pixels)

    embedder = Embedder(largest=4)
    with ThreadPoolExecutor(7) as pool:
        futures = [pool.submit(embedder.embed, embed, square(0), seconds=30)]
        first.wait(30)
        futures += [pool.submit(embedder.embed, embed, square(n), seconds=30) for n in range(1, 7)]
        while len(embedder._jobs) < 6:
            pass
        release.set()
        assert [future.result(30).tolist() for future in futures] == [[n] for n in range(7)]
    embedder.close()
    assert sizes == [1, 4, 2]


def test_a_mistake_reaches_those_who_asked_and_the_thread_goes_on() -> None:
    broken = True

    def embed(pixels: PixelArray) -> FloatArray:
        if broken:
            raise ValueError("no such luck")
        return mean(pixels)

    embedder = Embedder()
    with pytest.raises(ValueError, match="no such luck"):
        embedder.embed(embed, square(1), seconds=30)
    broken = False
    assert embedder.embed(embed, square(3), seconds=30).tolist() == [3]
    embedder.close()


def test_too_many_and_too_late_are_refused() -> None:
    release = threading.Event()

    def embed(pixels: PixelArray) -> FloatArray:
        release.wait(30)
        return mean(pixels)

    embedder = Embedder(waiting=1)
    with pytest.raises(Refused, match=r"within 0\.05 seconds"):
        embedder.embed(embed, square(0), seconds=0.05)
    with pytest.raises(Refused, match=r"within 0\.05 seconds"):
        embedder.embed(embed, square(0), seconds=0.05)  # waits
    with pytest.raises(Refused, match="too many images wait"):
        embedder.embed(embed, square(0), seconds=0.05)
    release.set()
    embedder.close()
