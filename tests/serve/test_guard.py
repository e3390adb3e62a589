"""What every request passes: headers, host, origin, rate, size; and websockets are closed."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from phpq.serve.security import HEADERS
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
