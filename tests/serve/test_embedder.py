"""One thread for the model: everybody gets their own answer, and those who wait share a batch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from phpq.codes import FloatArray
from phpq.serve.embedder import Embedder
from phpq.serve.refusals import Refused

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

    embedder = Embedder(embed, largest=4)
    with ThreadPoolExecutor(7) as pool:
        futures = [pool.submit(embedder.embed, square(0), seconds=30)]
        first.wait(30)
        futures += [pool.submit(embedder.embed, square(n), seconds=30) for n in range(1, 7)]
        while embedder._jobs.qsize() < 6:
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

    embedder = Embedder(embed)
    with pytest.raises(ValueError, match="no such luck"):
        embedder.embed(square(1), seconds=30)
    broken = False
    assert embedder.embed(square(3), seconds=30).tolist() == [3]
    embedder.close()


def test_too_many_and_too_late_are_refused() -> None:
    release = threading.Event()

    def embed(pixels: PixelArray) -> FloatArray:
        release.wait(30)
        return mean(pixels)

    embedder = Embedder(embed, waiting=1)
    with pytest.raises(Refused, match=r"within 0\.05 seconds"):
        embedder.embed(square(0), seconds=0.05)
    with pytest.raises(Refused, match=r"within 0\.05 seconds"):
        embedder.embed(square(0), seconds=0.05)  # waits
    with pytest.raises(Refused, match="too many images wait"):
        embedder.embed(square(0), seconds=0.05)
    release.set()
    embedder.close()
