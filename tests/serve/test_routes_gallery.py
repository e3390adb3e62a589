"""Facts, images, codebooks, the map, why images match; writing, only with the token."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from served_galleries import (
    IMAGES,
    LABELS,
    TOKEN,
    copy_gallery,
    ids,
    new_photo,
    photo,
    served,
    tiny_model,
)

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


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


def test_the_map_shows_every_image_or_a_sample(client: TestClient) -> None:
    whole = client.get("/api/v1/map").json()
    assert {point["id"] for point in whole["points"]} == set(ids())
    assert whole["sampled"] is False
    assert all(-1 <= point[axis] <= 1 for point in whole["points"] for axis in "xy")
    assert all(point["id"].startswith(f"{point['label']}/") for point in whole["points"])
    assert client.get("/api/v1/map").json() == whole
    sample = client.get("/api/v1/map?limit=5").json()
    assert (len(sample["points"]), sample["sampled"]) == (5, True)


def test_codewords_add_up_to_the_gallery(client: TestClient) -> None:
    books = client.get("/api/v1/codebooks").json()["codebooks"]
    assert [book["codebook"] for book in books] == [0, 1, 2, 3]
    for book in books:
        assert book["used"] + book["dead"] == 8
        assert sum(word["images"] for word in book["words"]) == IMAGES
        counts = [word["images"] for word in book["words"]]
        assert counts == sorted(counts, reverse=True)
    assert len(client.get("/api/v1/codebooks?limit=1").json()["codebooks"][0]["words"]) == 1


def test_the_images_behind_a_codeword_have_it(client: TestClient) -> None:
    books = client.get("/api/v1/codebooks").json()["codebooks"]
    word = books[1]["words"][0]
    found = client.get(f"/api/v1/codebooks/1/{word['word']}").json()
    assert found["total"] == word["images"] == len(found["images"])
    for image in found["images"]:
        code = client.get("/api/v1/item", params={"id": image["id"]}).json()["code"]
        assert bytes.fromhex(code)[1] == word["word"]
    for path in ("9/0", "0/8"):
        assert client.get(f"/api/v1/codebooks/{path}").status_code == 404


def is_png(uri: str) -> bool:
    head, _, content = uri.partition(",")
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        return head == "data:image/png;base64" and image.format == "PNG"


def test_shares_add_up_to_the_score_of_the_search(client: TestClient) -> None:
    hit = client.get("/api/v1/search", params={"id": ids()[0]}).json()["hits"][2]
    params = {"query_id": ids()[0], "hit_id": hit["id"]}
    said = client.get("/api/v1/explain", params=params).json()
    assert said["score"] == pytest.approx(hit["score"], abs=1e-5)
    assert sum(share["score"] for share in said["shares"]) == pytest.approx(hit["score"], abs=1e-5)
    assert is_png(said["query"]["heatmap"])
    assert is_png(said["hit"]["heatmap"])
    assert said["note"] == ""


def test_an_upload_is_explained(client: TestClient) -> None:
    files = {"image": ("a.png", new_photo(1))}
    hit = client.post("/api/v1/search", files=files).json()["hits"][0]
    said = client.post("/api/v1/explain", files=files, data={"hit_id": hit["id"]}).json()
    assert said["score"] == pytest.approx(hit["score"], abs=1e-5)
    assert is_png(said["query"]["heatmap"])
    missing = client.post("/api/v1/explain", files=files, data={"hit_id": "none"})
    assert missing.status_code == 404


def test_a_code_has_shares_but_no_picture(client: TestClient) -> None:
    params = {"code": "00010203", "hit_id": ids()[1]}
    said = client.get("/api/v1/explain", params=params).json()
    assert len(said["shares"]) == 4
    assert said["query"]["heatmap"] is None
    assert "only its code is known" in said["note"]
    assert is_png(said["hit"]["heatmap"])


def test_exactly_one_query_is_named(client: TestClient) -> None:
    for extra in ({}, {"code": "00010203", "query_id": ids()[0]}):
        answer = client.get("/api/v1/explain", params={"hit_id": ids()[1], **extra})
        assert answer.status_code == 400


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
