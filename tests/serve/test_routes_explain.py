"""Explanations over HTTP: shares add up to the score, and what is missing is said."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from served_galleries import ids, new_photo


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
