"""Messages survive the wire, and a cut wire is noticed."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpq.serve.wire import receive, send


class Trickle(io.BytesIO):
    """A pipe that gives one byte at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 1))


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary())
def test_what_is_sent_is_received(head: dict[str, object], content: bytes) -> None:
    stream = io.BytesIO()
    send(stream, head, content)
    send(stream, {"second": 1})
    for kind in (io.BytesIO, Trickle):
        source = kind(stream.getvalue())
        assert receive(source) == (head, content)
        assert receive(source) == ({"second": 1}, b"")


def test_an_end_in_the_middle_is_an_error() -> None:
    stream = io.BytesIO()
    send(stream, {"a": 1}, b"content")
    whole = stream.getvalue()
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole[:length]))


def test_an_absurd_length_is_an_error() -> None:
    with pytest.raises(EOFError, match="a head of"):
        receive(io.BytesIO(b"\xff" * 100))
