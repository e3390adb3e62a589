"""Decoding apart: right pixels, bounded time and memory, messages that survive the pipe."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from phpq.config import DataConfig
from phpq.data.decode import decode_square
from phpq.errors import BadImageError
from phpq.serve import decode_pool
from phpq.serve._refusals import Refused
from phpq.serve.decode_pool import DecodePool, perform, receive, send
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
    process = pool._idle.get()
    assert process is not None
    process._process.kill()
    process._process.wait()
    pool._idle.put(process)
    assert pool.check(new_photo(0), name="a").format == "PNG"


class _Slow(decode_pool._Process):
    """Never answers by itself: what is sent to it is not sent on."""

    def _exchange(self, head: Any, content: bytes, seconds: float) -> Any:
        return super()._exchange(None, b"", seconds)


def test_a_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "_Process", _Slow)
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
    process = pool._idle.queue[-1]
    assert process is not None
    closing = threading.Thread(target=pool.close)
    closing.start()
    closing.join()
    pool.close()
    assert not process.alive
    with pytest.raises(Refused, match="shutting down"):
        pool.check(new_photo(0), name="a")


HEAD: dict[str, Any] = {"name": "x.png", "max_pixels": 10_000}


def test_a_square_is_what_the_library_decodes() -> None:
    content = new_photo(0)
    head = HEAD | {"job": "square", "store_size": 16, "fit": "crop"}
    said, pixels = perform(head, content)
    expected = decode_square(content, DataConfig(store_size=16, fit="crop"))
    assert np.array_equal(np.frombuffer(pixels, np.uint8).reshape(said["shape"]), expected)
    assert said["format"] == "PNG"


def test_a_thumbnail_keeps_the_shape_and_is_a_jpeg() -> None:
    said, content = perform(HEAD | {"job": "thumbnail", "size": 20}, new_photo(1))
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.size) == ("JPEG", (20, 16))
    assert said["shape"] == (20, 16)


def test_pixels_are_bounded_and_a_check_gives_none() -> None:
    said, content = perform(HEAD | {"job": "pixels", "size": 25}, new_photo(2))
    assert said["shape"] == (20, 25, 3)
    assert len(content) == 20 * 25 * 3
    said, content = perform(HEAD | {"job": "check"}, new_photo(2, "GIF"))
    assert (said["format"], content) == ("GIF", b"")


def test_what_cannot_be_decoded_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    head = HEAD | {"job": "check"}
    assert "Cannot read the image 'x.png'" in perform(head, b"no image")[0]["bad"]
    said, _ = perform(head | {"max_pixels": 100}, new_photo(0))
    assert "more than the limit of 100" in said["bad"]
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, "EPS")
    assert "looks like EPS" in perform(head, stream.getvalue())[0]["bad"]

    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decode_pool, "read_image", greedy)
    assert "too much memory" in perform(head, new_photo(0))[0]["bad"]


def test_the_process_answers_until_its_input_ends() -> None:
    requests = io.BytesIO()
    for job in ("check", "nonsense-image"):
        content = new_photo(0) if job == "check" else b"nonsense"
        send(requests, HEAD | {"job": "check"}, content)
    done = subprocess.run(
        [sys.executable, "-m", "phpq.serve.decode_pool"],
        input=requests.getvalue(),
        capture_output=True,
        check=True,
    )
    answers = io.BytesIO(done.stdout)
    assert receive(answers)[0] == {"ready": True}
    assert receive(answers)[0]["format"] == "PNG"
    assert "bad" in receive(answers)[0]
    assert answers.read() == b""


LIMITED = """
import sys
from phpq.serve.decode_pool import limit_memory
limit_memory(1 << 30)
try:
    bytearray(2 << 30)
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_process_cannot_take_more_memory_than_it_is_given() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, check=True, text=True
    )
    assert done.stdout == "refused\n"


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary())
def test_what_is_sent_is_received(head: dict[str, object], content: bytes) -> None:
    stream = io.BytesIO()
    send(stream, head, content)
    send(stream, {"second": 1})
    stream.seek(0)
    assert receive(stream) == (head, content)
    assert receive(stream) == ({"second": 1}, b"")


def test_an_end_in_the_middle_is_an_error() -> None:
    stream = io.BytesIO()
    send(stream, {"a": 1}, b"content")
    whole = stream.getvalue()
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole[:length]))


@pytest.mark.parametrize(
    "said", [b"\xff" * 100, bytes(8), b"\0\0\0\x02\0\0\0\0{]", b"\0\0\0\x02\0\0\0\x0012"]
)
def test_what_makes_no_sense_is_an_error(said: bytes) -> None:
    with pytest.raises(EOFError, match="a head"):
        receive(io.BytesIO(said))
