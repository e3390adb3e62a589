"""Writing over HTTP: only with the token, and seen by the next search."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from served_galleries import TOKEN, copy_gallery, ids, new_photo, served

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


def test_a_read_only_server_refuses_even_with_a_token(client: TestClient) -> None:
    answer = client.delete("/api/v1/items?id=a", headers=AUTHORISED)
    assert answer.status_code == 403
    added = client.post("/api/v1/items", files={"image": new_photo(0)}, data={"id": "a"})
    assert added.status_code == 403


def test_add_replace_and_delete_are_seen_at_once(tmp_path: Path) -> None:
    with served(copy_gallery(tmp_path), writable=True, token=TOKEN, reload_seconds=60) as client:

        def add(seed: int, mode: str) -> tuple[int, dict[str, int]]:
            answer = client.post(
                "/api/v1/items",
                files={"image": ("a.png", new_photo(seed))},
                data={"id": "new/a", "label": "jay", "metadata": '{"year": 7}', "mode": mode},
                headers=AUTHORISED,
            )
            return answer.status_code, answer.json()

        status, report = add(0, "add")
        assert (status, report["added"]) == (200, 1)
        found = client.get("/api/v1/search", params={"id": "new/a", "label": "owl"})
        assert found.status_code == 200
        assert client.get("/api/v1/thumbnail?id=new/a").status_code == 200
        assert client.get("/api/v1/item?id=new/a").json()["metadata"] == {"year": 7}
        assert add(1, "add")[0] == 409
        assert add(1, "upsert")[1]["replaced"] == 1
        assert client.get("/api/v1/original?id=new/a").content == new_photo(1)
        gone = client.request(
            "DELETE", "/api/v1/items?id=none", json={"ids": ["new/a", ids()[0]]}, headers=AUTHORISED
        ).json()
        assert (gone["deleted"], gone["unknown"]) == (2, ["none"])
        assert client.get("/api/v1/item?id=new/a").status_code == 404
        assert client.get("/api/v1/info").json()["images"] == 23
        assert client.get("/ready").json()["version"] == gone["version"]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}])
def test_without_the_token_nothing_is_written(tmp_path: Path, header: dict[str, str]) -> None:
    with served(copy_gallery(tmp_path), writable=True, token=TOKEN) as client:
        answer = client.post(
            "/api/v1/items", files={"image": new_photo(0)}, data={"id": "a"}, headers=header
        )
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert client.delete(f"/api/v1/items?id={ids()[0]}", headers=header).status_code == 401
        assert client.get("/api/v1/info").json()["images"] == 24
        empty = client.delete("/api/v1/items", headers=AUTHORISED)
        assert empty.status_code == 400
