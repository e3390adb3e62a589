"""Facts, labels, items and pictures over HTTP."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from starlette.testclient import TestClient

from served_galleries import IMAGES, LABELS, copy_gallery, ids, photo, served, tiny_model


def test_info_says_what_is_served(client: TestClient) -> None:
    info = client.get("/api/v1/info").json()
    assert (info["name"], info["images"], info["labels"]) == ("birds.gallery", IMAGES, 4)
    assert info["bits"] == tiny_model().bits
    assert info["model"]["fingerprint"] == tiny_model().fingerprint()
    assert info["model"]["method"] == "phpq"
    assert {"name": "year", "type": "int64"} in info["filters"]
    assert info["embeddings"] is True


def test_labels_are_counted_searched_and_paged(client: TestClient) -> None:
    labels = client.get("/api/v1/labels").json()
    assert [entry["label"] for entry in labels["labels"]] == sorted(LABELS)
    assert sum(entry["images"] for entry in labels["labels"]) == IMAGES
    found = client.get("/api/v1/labels?prefix=W").json()
    assert found == {"total": 1, "labels": [{"label": "wren", "images": 6}]}
    page = client.get("/api/v1/labels?offset=1&limit=2").json()
    assert (page["total"], page["labels"]) == (4, labels["labels"][1:3])


def test_an_item_is_what_was_indexed(client: TestClient) -> None:
    item = client.get("/api/v1/item", params={"id": ids()[3]}).json()
    assert item["label"] == ids()[3].split("/")[0]
    assert item["metadata"] == {"year": 2003}
    assert item["has_original"] is True
    assert len(bytes.fromhex(item["code"])) == 4
    assert client.get(item["thumbnail"]).headers["content-type"] == "image/jpeg"


def test_pictures_come_with_a_tag_and_are_not_sent_twice(client: TestClient) -> None:
    for path, size in (("thumbnail", 64), ("original", 64)):
        answer = client.get(f"/api/v1/{path}", params={"id": ids()[0]})
        with Image.open(io.BytesIO(answer.content)) as image:
            assert max(image.size) == size
        assert "sandbox" in answer.headers["content-security-policy"]
        tag = {"If-None-Match": answer.headers["etag"]}
        again = client.get(f"/api/v1/{path}", params={"id": ids()[0]}, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
    original = client.get("/api/v1/original", params={"id": ids()[0]})
    assert original.content == photo(0)


def test_no_id_leads_to_another_file(client: TestClient) -> None:
    for name in ("/etc/passwd", "../../../etc/passwd", "wren/../../x", "", ".", "\x00", "a" * 1024):
        for path in ("thumbnail", "original", "item"):
            answer = client.get(f"/api/v1/{path}", params={"id": name})
            assert answer.status_code == 404
            assert "root:" not in answer.text


def test_a_file_that_changed_is_not_shown(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(photo(1))
    target = tmp_path / "files" / ids()[0]
    target.unlink()
    target.symlink_to(secret)
    (tmp_path / "files" / ids()[2]).unlink()
    with served(folder) as client:
        for path in ("thumbnail", "original"):
            linked = client.get(f"/api/v1/{path}", params={"id": ids()[0]})
            assert linked.status_code == 422
            assert "not the one that was indexed" in linked.json()["error"]["message"]
            gone = client.get(f"/api/v1/{path}", params={"id": ids()[2]})
            assert gone.status_code == 404
        assert client.get("/api/v1/item", params={"id": ids()[2]}).json()["has_original"] is False
