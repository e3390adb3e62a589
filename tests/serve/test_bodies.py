"""Bodies: bounded in bytes, time and number, however they arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive

from phpq.serve import bodies
from phpq.serve.bodies import Bodies
from phpq.serve.refusals import Refused
from phpq.serve.settings import FORM_BYTES, ServerSettings

SETTINGS = ServerSettings(max_upload_bytes=1000, body_seconds=0.05)


def scope(method: str = "POST", path: str = "/x", length: str = "") -> dict[str, Any]:
    headers = [(b"content-length", length.encode())] if length else []
    return {"method": method, "path": path, "headers": headers}


def parts(*sizes: int) -> Receive:
    left = list(sizes)

    async def receive() -> Message:
        size = left.pop(0)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    return receive


async def consume(receive: Receive) -> int:
    total, more = 0, True
    while more:
        message = await receive()
        total += len(message["body"])
        more = message["more_body"]
    return total


def test_a_body_within_the_limit_passes() -> None:
    watch = Bodies(SETTINGS)
    with watch.watched(scope(), parts(500, 0, FORM_BYTES)) as receive:
        assert asyncio.run(consume(receive)) == FORM_BYTES + 500
    assert watch._arriving == 0


def test_a_body_that_lies_about_its_length_is_stopped() -> None:
    watch = Bodies(SETTINGS)
    endless = parts(*[1000] * 100)
    with watch.watched(scope(length="10"), endless) as receive, pytest.raises(Refused) as caught:
        asyncio.run(consume(receive))
    assert caught.value.status == 413


def test_a_declared_length_is_refused_before_a_byte_is_read() -> None:
    watch = Bodies(SETTINGS)
    with (
        pytest.raises(Refused, match="9,000,000 bytes"),
        watch.watched(scope(length="9000000"), parts(1)),
    ):
        pass
    assert watch._arriving == 0


def test_a_batch_may_be_larger() -> None:
    watch = Bodies(SETTINGS)
    assert watch.largest("/api/v1/search/batch") == 4000 + FORM_BYTES
    assert watch.largest("/api/v1/search") == 1000 + FORM_BYTES


def test_a_slow_body_is_given_up() -> None:
    async def slow() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    with Bodies(SETTINGS).watched(scope(), slow) as receive, pytest.raises(Refused) as caught:
        asyncio.run(consume(receive))
    assert caught.value.status == 408


def test_too_many_at_once_are_refused_and_reading_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MOST_BODIES", 1)
    watch = Bodies(SETTINGS)
    source = parts(1)
    with watch.watched(scope(), parts(1)):
        with pytest.raises(Refused, match="uploads arrive"), watch.watched(scope(), parts(1)):
            pass
        with watch.watched(scope("GET"), source) as receive:
            assert receive is source
    with watch.watched(scope(), parts(1)):
        pass
