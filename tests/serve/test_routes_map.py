"""The gallery as a whole, over HTTP."""

from __future__ import annotations

from starlette.testclient import TestClient

from served_galleries import IMAGES, ids


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
