"""The page, the documents, and what machines ask."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI
from starlette.testclient import TestClient

from phpq.gallery import Gallery
from phpq.serve.routes_site import STATIC, mount_static, render, site_routes
from phpq.serve.services import Services
from phpq.serve.settings import ServerSettings
from served_galleries import shared_gallery


def test_health_readiness_and_metrics_answer(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    ready = {"status": "ok", "version": client_version(client), "missing_shards": []}
    assert client.get("/ready").json() == ready
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def client_version(client: TestClient) -> int:
    return int(client.get("/api/v1/info").json()["version"])


def test_the_page_is_served_where_it_is_and_a_word_where_it_is_not(tmp_path: Path) -> None:
    services = Services(Gallery.open(shared_gallery(), device="cpu"), ServerSettings())
    app = FastAPI()
    app.include_router(site_routes(services, static=tmp_path))
    mount_static(app, static=tmp_path)
    client = TestClient(app)
    assert "/docs" in client.get("/").text
    assert client.get("/").headers["content-type"].startswith("text/plain")
    (tmp_path / "index.html").write_text("<p>birds</p>", "utf-8")
    (tmp_path / "style.css").write_text("p {}", "utf-8")
    assert client.get("/").text == "<p>birds</p>"
    answer = client.get("/static/style.css")
    assert (answer.text, answer.headers["cache-control"]) == ("p {}", "no-cache")
    assert client.get("/ready").status_code == 503  # it was not started
    services.close()


def test_nothing_outside_the_folder_is_served(client: TestClient) -> None:
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "%2fetc/passwd"):
        assert client.get(f"/static/{path}").status_code == 404


def test_the_folder_is_inside_the_package() -> None:
    assert STATIC.parent.name == "serve"


def test_the_page_names_every_operation_and_needs_nothing_from_elsewhere(
    client: TestClient,
) -> None:
    page = client.get("/docs").text
    document = client.get("/openapi.json").json()
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    assert "<script" not in page
    assert "style=" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert client.get("/docs/style.css").headers["content-type"].startswith("text/css")


def test_types_limits_and_files_are_said(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "integer 1 to 500, 10 by default" in page
    assert "<td>file</td>" in page
    assert "list of HitAnswer" in page
    assert "add or upsert" in page


def test_what_a_document_says_is_escaped() -> None:
    operation = {"description": "<b>bold</b>", "responses": {"200": {"description": "x"}}}
    document = {"info": {"title": "<i>", "version": "1"}, "paths": {"/x": {"get": operation}}}
    page = render(json.dumps(document))
    assert "&lt;b&gt;bold" in page
    assert "<i>" not in page
