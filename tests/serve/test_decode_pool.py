"""Decoders: right pixels, bounded time, replaced when they die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from phpq.config import DataConfig
from phpq.data.decode import decode_square
from phpq.errors import BadImageError
from phpq.serve import decode_pool
from phpq.serve.decode_pool import DecodePool
from phpq.serve.refusals import Refused
from phpq.serve.wire import receive
from served_galleries import new_photo

CONFIG = DataConfig(store_size=16, fit="squash")


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    pool = DecodePool(1, max_pixels=10_000, seconds=20)
    yield pool
    pool.close()


def test_pixels_are_those_of_the_library(pool: DecodePool) -> None:
    content = new_photo(0)
    square = pool.square(content, CONFIG, name="a")
    assert np.array_equal(square, decode_square(content, CONFIG))
    assert pool.thumbnail(content, 10, name="a").shape == (10, 8)
    assert pool.pixels(content, 100, name="a").shape == (40, 50, 3)
    assert pool.check(content, name="a").format == "PNG"


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8\xff", new_photo(0)[:-900]])
def test_a_bad_image_is_refused_and_the_next_is_decoded(pool: DecodePool, content: bytes) -> None:
    with pytest.raises(BadImageError, match=r"Cannot read the image 'bad\.jpg'"):
        pool.square(content, CONFIG, name="bad.jpg")
    assert pool.check(new_photo(1), name="good").format == "PNG"


def test_a_decoder_that_dies_is_replaced(pool: DecodePool) -> None:
    pool.check(new_photo(0), name="a")
    decoder = pool._idle.get()
    assert decoder is not None
    decoder._process.kill()
    decoder._process.wait()
    pool._idle.put(decoder)
    assert pool.check(new_photo(0), name="a").format == "PNG"


class _Slow(decode_pool._Decoder):
    """Never answers by itself: what is sent to it is not sent on."""

    def ask(self, head: dict[str, Any], content: bytes, seconds: float) -> Any:
        if not self._ready:
            super().ask(head, content, 60.0)
        return self._timed(lambda: receive(self._output), seconds)


def test_a_decoder_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "_Decoder", _Slow)
    pool = DecodePool(1, max_pixels=10_000, seconds=0.2)
    with pytest.raises(BadImageError, match=r"more than 0\.2 seconds"):
        pool.check(new_photo(0), name="a")
    assert pool._idle.get_nowait() is None


def test_those_who_come_when_all_are_at_work_are_refused() -> None:
    pool = DecodePool(1, max_pixels=10_000, seconds=0.05)
    taken = pool._idle.get()
    with pytest.raises(Refused, match="all decoders are at work"):
        pool.check(new_photo(0), name="a")
    pool._idle.put(taken)


def test_a_closed_pool_refuses_and_keeps_no_process() -> None:
    pool = DecodePool(2, max_pixels=10_000, seconds=1)
    pool.start()
    decoder = pool._idle.queue[-1]
    assert decoder is not None
    closing = threading.Thread(target=pool.close)
    closing.start()
    closing.join()
    pool.close()
    assert not decoder.alive
    with pytest.raises(Refused, match="shutting down"):
        pool.check(new_photo(0), name="a")
