"""The app as a whole: errors have one shape, the document is complete, nothing loads at import."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from phpq.gallery import Gallery
from phpq.serve import ServerSettings, create_app
from served_galleries import ADDRESS, ids, photo, served, shared_gallery


def test_the_defaults_serve_a_gallery_on_loopback_for_reading() -> None:
    app = create_app(Gallery.open(shared_gallery(), device="cpu"))
    with TestClient(app, base_url=ADDRESS) as client:
        assert client.get("/api/v1/info").json()["writable"] is False


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/api/v1/item?id=none", 404, "UnknownNameError"),
        ("GET", "/api/v1/item", 422, "ConfigError"),
        ("GET", "/api/v1/search?id=a&top_k=0", 422, "ConfigError"),
        ("GET", "/api/v1/search", 400, "ConfigError"),
        ("GET", "/api/v1/nothing", 404, "UnknownNameError"),
        ("PUT", "/api/v1/info", 405, "ConfigError"),
        ("POST", "/api/v1/search", 422, "ConfigError"),
    ],
)
def test_every_error_has_one_shape(
    client: TestClient, method: str, path: str, status: int, kind: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"kind", "message", "request_id"}
    assert error["kind"] == kind
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


def test_a_library_error_keeps_its_text(client: TestClient) -> None:
    with pytest.raises(LookupError) as caught:
        Gallery.open(shared_gallery(), device="cpu").get("none")
    words = str(caught.value).replace(str(shared_gallery()), shared_gallery().name)
    assert client.get("/api/v1/item?id=none").json()["error"]["message"] == words


def test_the_place_of_the_gallery_is_not_told(client: TestClient) -> None:
    text = client.get("/api/v1/item?id=none").json()["error"]["message"]
    assert shared_gallery().name in text
    assert str(shared_gallery().parent) not in text


def test_a_mistake_of_ours_is_a_500_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as client:
        app = client.app
        assert isinstance(app, FastAPI)
        services = app.state.services
        monkeypatch.setattr(services, "embed", lambda *_: 1 / 0)
        answer = client.post("/api/v1/search", files={"image": photo()})
    assert answer.status_code == 500
    assert answer.json()["error"]["kind"] == "ServerError"
    assert "division" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_other_origins_are_let_in_only_by_name() -> None:
    origin = "https://birds.example.org"
    with served() as client:
        answer = client.get("/api/v1/info", headers={"Origin": origin})
        assert "access-control-allow-origin" not in answer.headers
    with served(cors_origins=(origin,)) as client:
        answer = client.get("/api/v1/info", headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
        other = client.get("/api/v1/info", headers={"Origin": "https://other.example.org"})
        assert "access-control-allow-origin" not in other.headers


def test_the_document_describes_every_answer(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            good = operation["responses"]["200"]
            assert operation["description"], (path, method)
            assert good["content"], (path, method)
            if path.startswith("/api/v1"):
                assert "503" in operation["responses"], (path, method)


def test_every_reference_of_the_document_leads_somewhere(client: TestClient) -> None:
    text = client.get("/openapi.json").text
    document = json.loads(text)
    references = set(re.findall(r'"\$ref":\s*"([^"]*)"', text))
    assert len(references) > 10
    for reference in references:
        root, *path = reference.split("/")
        assert root == "#"
        target = document
        for part in path:
            target = target[part]


def test_importing_the_server_loads_no_torch() -> None:
    code = "import sys, phpq.serve, phpq.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_reach_the_app() -> None:
    with served(max_upload_bytes=1000) as client:
        assert client.get("/api/v1/info").json()["limits"]["max_upload_bytes"] == 1000
        answer = client.post("/api/v1/search", files={"image": photo() + bytes(1000)})
        assert answer.status_code == 413
    assert ServerSettings().max_upload_bytes > 1_000_000
    assert len(ids()) == 24
