"""What is beside the API: the page or a word instead, health, readiness, metrics."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.testclient import TestClient

from phpq.gallery import Gallery
from phpq.serve.routes_site import STATIC, mount_static, site_routes
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
