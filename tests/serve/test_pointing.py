"""Photos, boxes and examples over HTTP: the hits of the library, and words for what cannot be."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from phpq.client import Client
from phpq.explain import suggest_box
from phpq.gallery import Gallery
from phpq.serve.pointing import upload_name
from served_galleries import ids, new_photo, photo, running, shared_gallery

BOX = (4, 6, 30, 32)


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return Gallery.open(shared_gallery(), device="cpu")


@pytest.fixture(scope="module")
def remote() -> Iterator[Client]:
    with running() as address, Client(address) as client:
        yield client


def opened(seed: int) -> Image.Image:
    return Image.open(io.BytesIO(new_photo(seed)))


def hit_ids(found: Any) -> list[str]:
    return [hit.id for hit in found]


def test_client_and_library_find_the_same(remote: Client, gallery: Gallery) -> None:
    more, less = [ids()[3]], [ids()[8]]
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (new_photo(1), opened(1), {"box": BOX}),
        ([new_photo(1), new_photo(2)], [opened(1), opened(2)], {}),
        ([new_photo(1), new_photo(2)], [opened(1), opened(2)], {"box": [BOX, None]}),
        (new_photo(1), opened(1), {"more": more, "less": less}),
        (None, None, {"more": [*more, ids()[5]], "less": less}),
    ]
    for sent, own, options in cases:
        expected = gallery.search(own, 6, **options)
        answer = remote.search(sent, 6, **options)
        assert hit_ids(answer) == hit_ids(expected), options
        assert answer.total == expected.total
        assert answer.query["more"] == list(options.get("more", []))
    # The code of an answer leaves the examples out: with them, it can be shared.
    plain, led = remote.search(new_photo(1), 3), remote.search(new_photo(1), 3, more=more)
    assert led.code == plain.code


def test_a_suggested_box_is_searched_with(remote: Client, gallery: Gallery) -> None:
    content = photo(2)
    box = remote.suggest_box(content)
    image = Image.open(io.BytesIO(content))
    assert box == pytest.approx(suggest_box(gallery.model, image), abs=2)
    answer = remote.search(content, 4, box="auto")
    assert answer.query["boxes"] == [pytest.approx(list(box), abs=1e-6)]
    assert hit_ids(answer) == hit_ids(remote.search(content, 4, box=box))
    assert remote.info()["suggests_boxes"]


def test_explanations_are_of_the_whole_query(remote: Client, gallery: Gallery) -> None:
    photos = [new_photo(1), new_photo(2)]
    hit = remote.search(photos, 1, box=[BOX, None])[0]
    why = remote.explain(hit.id, image=photos, box=[BOX, None])
    assert why.score == pytest.approx(hit.score, abs=1e-4)
    assert sum(why.shares) == pytest.approx(why.score, abs=1e-4)
    assert why.query_heat is not None
    with Image.open(io.BytesIO(why.query_heat)) as heat:
        assert heat.width == heat.height  # the part, not the photo


def search(client: TestClient, photos: int = 1, **fields: Any) -> Any:
    files = [("image", ("a.png", new_photo(n))) for n in range(photos)]
    return client.post("/api/v1/search", files=files, data=fields)


@pytest.mark.parametrize(
    ("photos", "fields", "status", "said"),
    [
        (1, {"box": "0,0,99,10"}, 400, "not inside the photo, which has 50 x 40 pixels"),
        (1, {"box": "5,5,5,10"}, 400, "is empty"),
        (1, {"box": "here"}, 400, "cannot be read"),
        (1, {"box": "nan,0,1,1"}, 400, "not allowed"),
        (2, {"box": "0,0,9,9"}, 400, "is one box for 2 photos"),
        (9, {}, 400, "has 9 photos; at most 8"),
        (1, {"more": "nobody"}, 404, "nobody"),
        (1, {"more": [str(n) for n in range(33)]}, 422, "more"),
    ],
)
def test_what_cannot_be_is_refused(
    client: TestClient, photos: int, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = search(client, photos, **fields)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_query_needs_something_that_it_is_like(client: TestClient) -> None:
    for params, said in (
        ({"less": ids()[0]}, "only what it is not like"),
        ({"id": ids()[0], "less": ids()[0]}, "as like and as unlike"),
        ({}, "names nothing"),
    ):
        answer = client.get("/api/v1/search", params=params)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text
    led = client.get("/api/v1/search", params={"id": ids()[0], "less": ids()[1]}).json()
    assert led["total"] == 22
    assert led["query"]["less"] == [ids()[1]]
    assert led["query"]["more"] == []
    assert client.get("/api/v1/explain", params={"hit_id": ids()[0]}).status_code == 400
    params = {"hit_id": ids()[4], "query_id": ids()[0], "less": ids()[1]}
    explained = client.get("/api/v1/explain", params=params).json()
    scores = {
        hit["id"]: hit["score"]
        for hit in client.get(
            "/api/v1/search", params={"id": ids()[0], "less": ids()[1], "top_k": 24}
        ).json()["hits"]
    }
    assert explained["score"] == pytest.approx(scores[ids()[4]], abs=1e-4)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\a.png", "a.png"),
        ("", "uploaded image"),
        (None, "uploaded image"),
        ("x" * 500, "x" * 120),
    ],
)
def test_an_upload_is_called_by_its_file(filename: str | None, expected: str) -> None:
    assert upload_name(filename) == expected
