"""What every request passes: headers, host, origin, token, rate and body; websockets are closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.types import Message, Receive
from starlette.websockets import WebSocketDisconnect

from phpq.serve import _guard as guard
from phpq.serve._guard import (
    HEADERS,
    POLICY,
    Bodies,
    RateLimit,
    check_host,
    check_origin,
    check_token,
)
from phpq.serve._refusals import Refused
from phpq.serve.settings import FORM_BYTES, ServerSettings
from served_galleries import ids, photo, served


@pytest.mark.parametrize("path", ["/", "/health", "/api/v1/info", "/nothing", "/static/x.js"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    for name, value in HEADERS:
        assert answer.headers[name.decode()] == value.decode()
    assert len(answer.headers["x-request-id"]) == 16


def test_a_foreign_host_is_refused_even_for_health(client: TestClient) -> None:
    answer = client.get("/health", headers={"Host": "evil.example.org"})
    assert answer.status_code == 403
    assert answer.json()["error"]["kind"] == "AccessError"


def test_the_page_of_another_site_cannot_post(client: TestClient) -> None:
    answer = client.post(
        "/api/v1/search",
        files={"image": photo()},
        headers={"Origin": "https://evil.example.org"},
    )
    assert answer.status_code == 403


def test_a_client_that_asks_too_often_is_told_when_to_come_back() -> None:
    with served(rate=0.001, burst=3) as client:
        statuses = [client.get("/api/v1/info").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = client.get("/api/v1/info")
        assert int(refused.headers["retry-after"]) > 1
        assert refused.json()["error"]["kind"] == "BusyError"
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        assert 'status="429"' in client.get("/metrics").text


def test_an_upload_that_cannot_be_taken_is_not_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served() as client:
        app = client.app
        assert isinstance(app, FastAPI)
        monkeypatch.setattr(app.state.services.uploads, "_most", 0)
        answer = client.post("/api/v1/search", files={"image": photo()})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "too many uploads wait" in answer.text
        batch = {"queries": [{"id": ids()[0]}]}
        assert client.post("/api/v1/search/batch", json=batch).status_code == 200


def test_a_websocket_is_closed(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/anything"):
        pass


def test_requests_are_counted(client: TestClient) -> None:
    client.get("/nothing/at/all")
    text = client.get("/metrics").text
    assert 'route="none",status="404"' in text
    assert "phpq_images 24.0" in text


TOKEN = "0123456789abcdef"
LOCAL = ServerSettings()
OPEN = ServerSettings(host="0.0.0.0")
NAMED = ServerSettings(host="0.0.0.0", allowed_hosts=("Birds.example.org",))
WRITABLE = ServerSettings(token=TOKEN, writable=True)


@pytest.mark.parametrize(
    ("host", "settings", "allowed"),
    [
        ("127.0.0.1:8000", LOCAL, True),
        ("localhost", LOCAL, True),
        ("[::1]:8000", LOCAL, True),
        ("evil.example.org", LOCAL, False),
        ("evil.example.org:8000", LOCAL, False),
        ("127.0.0.1.evil.example.org", LOCAL, False),
        ("localhost@evil.example.org", LOCAL, False),
        ("", LOCAL, False),
        ("[::1", LOCAL, False),
        ("anything.example.org", OPEN, True),
        ("birds.example.org:80", NAMED, True),
        ("other.example.org", NAMED, False),
    ],
)
def test_only_own_names_are_served(host: str, settings: ServerSettings, allowed: bool) -> None:
    if allowed:
        check_host(host, settings)
    else:
        with pytest.raises(Refused, match="not served here") as caught:
            check_host(host, settings)
        assert caught.value.status == 403


@pytest.mark.parametrize(
    ("method", "origin", "allowed"),
    [
        ("POST", "", True),
        ("POST", "http://127.0.0.1:8000", True),
        ("GET", "https://evil.example.org", True),
        ("POST", "https://evil.example.org", False),
        ("DELETE", "http://127.0.0.1:9000", False),
        ("POST", "null", False),
        ("POST", "http://127.0.0.1:8000.evil.example.org", False),
    ],
)
def test_pages_of_other_sites_cannot_send(method: str, origin: str, allowed: bool) -> None:
    if allowed:
        check_origin(method, origin, "127.0.0.1:8000", LOCAL)
    else:
        with pytest.raises(Refused, match="may not send"):
            check_origin(method, origin, "127.0.0.1:8000", LOCAL)


def test_a_named_origin_can_send() -> None:
    settings = ServerSettings(cors_origins=("https://birds.example.org",))
    check_origin("POST", "https://birds.example.org", "127.0.0.1", settings)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \u00e9" * 9]
)
def test_a_wrong_token_is_refused(header: str) -> None:
    with pytest.raises(Refused) as caught:
        check_token(header, WRITABLE)
    assert caught.value.status == 401


def test_the_right_token_opens_only_a_writable_server() -> None:
    check_token(f"Bearer {TOKEN}", WRITABLE)
    check_token(f"bearer  {TOKEN} ", WRITABLE)
    with pytest.raises(Refused, match="read-only") as caught:
        check_token(f"Bearer {TOKEN}", ServerSettings(token=TOKEN))
    assert caught.value.status == 403


def test_the_policy_keeps_scripts_and_frames_of_others_out() -> None:
    assert POLICY.startswith("default-src 'self'; img-src 'self' data: blob:")
    assert "unsafe" not in POLICY
    assert "frame-ancestors 'none'" in POLICY


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
    assert watch.largest("/api/v1/search") == watch.largest("/api/v1/explain") == 4000 + FORM_BYTES
    assert watch.largest("/api/v1/items") == 1000 + FORM_BYTES


def test_a_slow_body_is_given_up() -> None:
    async def slow() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    with Bodies(SETTINGS).watched(scope(), slow) as receive, pytest.raises(Refused) as caught:
        asyncio.run(consume(receive))
    assert caught.value.status == 408


def test_too_many_at_once_are_refused_and_reading_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_MOST_BODIES", 1)
    watch = Bodies(SETTINGS)
    source = parts(1)
    with watch.watched(scope(), parts(1)):
        with pytest.raises(Refused, match="uploads arrive"), watch.watched(scope(), parts(1)):
            pass
        with watch.watched(scope("GET"), source) as receive:
            assert receive is source
    with watch.watched(scope(), parts(1)):
        pass


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
    monkeypatch.setattr(guard, "_MOST_CLIENTS", 3)
    limit = RateLimit(1, 1)
    for number in range(10):
        limit.take(str(number))
    assert len(limit._buckets) == 3
