"""Search over HTTP: the hits of the library, by upload, id, URI and code, alone and in batches."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from phpq.gallery import Gallery
from served_galleries import ids, new_photo, photo, shared_gallery


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return Gallery.open(shared_gallery(), device="cpu")


def hit_ids(answer: Any) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


def test_an_upload_finds_what_the_library_finds(
    client: TestClient, gallery: Gallery, tmp_path: Any
) -> None:
    (tmp_path / "new.png").write_bytes(new_photo(3))
    expected = gallery.search(tmp_path / "new.png", 7)
    found = client.post(
        "/api/v1/search", files={"image": ("new.png", new_photo(3))}, data={"top_k": 7}
    ).json()
    assert hit_ids(found) == [hit.id for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([h.score for h in expected])
    assert found["hits"][0]["metadata"] == dict(expected[0].metadata)
    assert found["query"]["kind"] == "upload"
    assert expected.verdict is not None
    assert found["verdict"] == expected.verdict.to_dict()
    assert found["verdict"]["by"] == "hits"
    again = client.get("/api/v1/search", params={"code": found["query"]["code"]})
    assert again.status_code == 200


def test_ids_and_uris_find_what_the_library_finds(client: TestClient, gallery: Gallery) -> None:
    expected = [hit.id for hit in gallery.search_id(ids()[5], 6, where="year < 2015")]
    params: dict[str, Any] = {"id": ids()[5], "top_k": 6, "where": "year < 2015"}
    assert hit_ids(client.get("/api/v1/search", params=params).json()) == expected
    uri = gallery.get(ids()[5]).uri
    by_uri = client.get("/api/v1/search", params={**params, "id": None, "uri": uri})
    assert by_uri.status_code in (200, 400)
    del params["id"]
    assert hit_ids(client.get("/api/v1/search", params={**params, "uri": uri}).json()) == expected


def test_labels_filter_and_pages_follow(client: TestClient) -> None:
    params: list[tuple[str, str | int | float | bool | None]] = [
        ("id", ids()[0]), ("label", "wren"), ("label", "owl"), ("top_k", 50)
    ]  # fmt: skip
    whole = client.get("/api/v1/search", params=params).json()
    assert {hit["label"] for hit in whole["hits"]} == {"wren", "owl"}
    assert whole["total"] == len(whole["hits"])
    page = client.get("/api/v1/search", params=[*params[:3], ("top_k", 3), ("offset", 2)]).json()
    assert page["hits"] == whole["hits"][2:5]


def test_a_batch_is_its_queries_one_by_one(client: TestClient) -> None:
    queries = [{"id": ids()[0]}, {"id": ids()[9]}, {"code": "00000000"}]
    body = {"queries": queries, "top_k": 4, "label": ["owl", "finch"]}
    answers = client.post("/api/v1/search/batch", json=body).json()["answers"]
    for query, found in zip(queries, answers, strict=True):
        params: dict[str, Any] = {**query, "top_k": 4, "label": ["owl", "finch"]}
        alone = client.get("/api/v1/search", params=params).json()
        assert found["hits"] == alone["hits"]
    files = [("image", (f"{seed}.png", new_photo(seed))) for seed in range(3)]
    uploads = client.post("/api/v1/search/batch", files=files, data={"top_k": "2"}).json()
    for seed, found in enumerate(uploads["answers"]):
        image = {"image": new_photo(seed)}
        alone = client.post("/api/v1/search", files=image, data={"top_k": 2}).json()
        assert hit_ids(found) == hit_ids(alone)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"queries": []}, 422),
        ({"queries": [{"id": "a"}] * 33}, 422),
        ({"queries": [{"id": "a", "code": "b"}]}, 400),
        ({"queries": [{}]}, 400),
        ({"queries": [{"id": "none"}]}, 404),
        ({"queries": [{"file": "/etc/passwd"}]}, 422),
        ({"queries": [{"id": "a"}], "top_k": 501}, 422),
    ],
)
def test_a_wrong_batch_is_refused(client: TestClient, body: Any, status: int) -> None:
    assert client.post("/api/v1/search/batch", json=body).status_code == status


def test_other_wrong_batches(client: TestClient) -> None:
    url = "/api/v1/search/batch"
    assert client.post(url, content=b"{", headers={"Content-Type": "a/b"}).status_code == 422
    assert client.post(url, data={"image": "text"}, files={"x": b"y"}).status_code == 400
    wrong = client.post(url, files={"image": photo()}, data={"top_k": "many"})
    assert wrong.status_code == 422
    assert "top_k='many'" in wrong.json()["error"]["message"]


def test_rerank_and_bad_filters_answer_in_the_words_of_the_library(
    client: TestClient, gallery: Gallery
) -> None:
    found = client.get("/api/v1/search", params={"id": ids()[0], "top_k": 5, "rerank": 20}).json()
    assert hit_ids(found) == [hit.id for hit in gallery.search_id(ids()[0], 5, rerank=20)]
    refused = client.get("/api/v1/search", params={"id": ids()[0], "rerank": 2})
    assert "re-rank at least as many" in refused.json()["error"]["message"]
    bad = client.get("/api/v1/search", params={"id": ids()[0], "where": "colour = 'red'"})
    assert bad.status_code == 400
    assert "Columns: id, label, year" in bad.json()["error"]["message"]


@pytest.mark.parametrize("share", ["-0.1", "1.5", "nan", "five"])
def test_shares_outside_are_refused(client: TestClient, share: str) -> None:
    params = {"id": ids()[0], "wrong_at_most": share}
    assert client.get("/api/v1/search", params=params).status_code == 422
    files = {"image": ("a.png", new_photo(0))}
    assert client.post("/api/v1/search", files=files, data=params).status_code == 422
    form = client.post("/api/v1/search/batch", files=files, data={"wrong_at_most": share})
    assert form.status_code == 422
