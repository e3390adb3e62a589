"""The work of a decoder, in this process: the same pixels as the library, and named refusals."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phpq.config import DataConfig
from phpq.data.decode import decode_square
from phpq.errors import BadImageError
from phpq.serve.decoder import answer, format_of, perform
from phpq.serve.wire import receive, send
from served_galleries import new_photo

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
    assert said["shape"] == [20, 16]


def test_pixels_are_bounded_and_a_check_gives_none() -> None:
    said, content = perform(HEAD | {"job": "pixels", "size": 25}, new_photo(2))
    assert said["shape"] == [20, 25, 3]
    assert len(content) == 20 * 25 * 3
    said, content = perform(HEAD | {"job": "check"}, new_photo(2, "GIF"))
    assert (said["format"], content) == ("GIF", b"")


def test_what_cannot_be_decoded_is_said_so() -> None:
    stream = io.BytesIO()
    answer(stream, HEAD | {"job": "check"}, b"no image")
    stream.seek(0)
    said, _ = receive(stream)
    assert "Cannot read the image 'x.png'" in said["bad"]
    with pytest.raises(BadImageError, match="more than the limit of 100"):
        perform(HEAD | {"job": "check", "max_pixels": 100}, new_photo(0))
    assert format_of(new_photo(0, "BMP")) == "BMP"


def test_the_process_answers_until_its_input_ends() -> None:
    requests = io.BytesIO()
    for job in ("check", "nonsense-image"):
        content = new_photo(0) if job == "check" else b"nonsense"
        send(requests, HEAD | {"job": "check"}, content)
    done = subprocess.run(
        [sys.executable, "-m", "phpq.serve.decoder"],
        input=requests.getvalue(),
        capture_output=True,
        check=True,
    )
    answers = io.BytesIO(done.stdout)
    assert receive(answers)[0] == {"ready": True}
    assert receive(answers)[0]["format"] == "PNG"
    assert "bad" in receive(answers)[0]
    assert answers.read() == b""
