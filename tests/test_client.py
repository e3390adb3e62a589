"""The client against a real server: the answers and the exceptions of the library."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

from phpq import errors
from phpq.client import AccessError, BusyError, Client, ServerError, to_error
from phpq.gallery import Gallery
from phpq.hits import Sure, Verdict
from phpq.serve.schemas import VerdictAnswer
from served_galleries import (
    LABELS,
    TOKEN,
    copy_gallery,
    ids,
    new_photo,
    photo,
    running,
    shared_gallery,
)
from sure_galleries import sure_model


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running() as address, Client(address) as client:
        yield client


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return Gallery.open(shared_gallery(), device="cpu")


def test_an_image_can_be_a_file_bytes_or_an_open_image(
    client: Client, gallery: Gallery, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(new_photo(2))
    expected = [hit.id for hit in gallery.search(tmp_path / "a.png", 5)]
    with Image.open(tmp_path / "a.png") as image:
        for query in (tmp_path / "a.png", str(tmp_path / "a.png"), new_photo(2), image):
            answer = client.search(query, 5)
            assert [hit.id for hit in answer] == expected
    assert (len(answer), answer.total) == (5, 24)
    assert client.search_code(answer.code, 5).total == 24


def test_searches_by_name_are_those_of_the_library(client: Client, gallery: Gallery) -> None:
    options = {"where": "year > 2003", "labels": ("owl", "wren")}
    where = "year > 2003 AND label IN ('owl', 'wren')"
    expected = [hit.id for hit in gallery.search_id(ids()[1], 6, where=where)]
    found = client.search_id(ids()[1], 6, where="year > 2003", labels=("owl", "wren"))
    assert [hit.id for hit in found] == expected
    uri = gallery.get(ids()[1]).uri
    assert uri is not None
    assert [hit.id for hit in client.search_uri(uri, 6, **options)] == expected  # type: ignore[arg-type]
    assert [hit.id for hit in client.search_id(ids()[1], 3, offset=2, where=where)] == expected[2:5]
    many = client.search_ids(ids()[:3], 4)
    assert [hit.id for hit in many[2]] == [hit.id for hit in client.search_id(ids()[2], 4)]
    uploads = client.search_many([photo(0), photo(1)], 2, rerank=9)
    assert [len(answer) for answer in uploads] == [2, 2]


def test_items_pictures_and_facts(client: Client) -> None:
    item = client.item(ids()[0])
    assert (item.id, item.metadata) == (ids()[0], {"year": 2000})
    assert client.original(ids()[0]) == photo(0)
    with Image.open(io.BytesIO(client.thumbnail(ids()[0], 50))) as image:
        assert image.format == "JPEG"
    assert client.info()["images"] == 24
    assert list(client.labels()) == sorted(LABELS)
    assert client.labels("o") == {"owl": 6}
    assert len(client.map(7)) == 7
    assert len(client.codebooks()) == 4
    word = client.codebooks()[0]["words"][0]["word"]
    assert client.codeword(0, word, limit=1)[0]["id"] in ids()
    assert client.ready()


def test_explanations_add_up(client: Client) -> None:
    for said in (
        client.explain(ids()[1], query_id=ids()[0]),
        client.explain(ids()[1], image=photo(0)),
    ):
        assert sum(said.shares) == pytest.approx(said.score, abs=1e-5)
        for picture in (said.query_heat, said.hit_heat):
            assert picture is not None
            assert picture.startswith(b"\x89PNG")
    bare = client.explain(ids()[1], code="00000000")
    assert bare.query_heat is None
    assert bare.note


def test_refusals_are_the_exceptions_of_the_library_with_its_words(
    client: Client, gallery: Gallery, tmp_path: Path
) -> None:
    with pytest.raises(errors.UnknownNameError) as theirs:
        gallery.get("none")
    with pytest.raises(errors.UnknownNameError) as ours:
        client.item("none")
    assert str(ours.value) == str(theirs.value).replace(str(gallery.path), gallery.path.name)
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(errors.BadImageError, match=r"'bad\.jpg': it is not an image"):
        client.search(tmp_path / "bad.jpg")
    with pytest.raises(errors.BadImageError, match="there is no such file"):
        client.search(tmp_path / "gone.jpg")
    with pytest.raises(errors.ConfigError, match="cannot be used"):
        client.search_id(ids()[0], where="nonsense")
    with pytest.raises(errors.ConfigError, match="top_k"):
        client.search_id(ids()[0], 0)
    with pytest.raises(AccessError, match="read-only"):
        client.delete("a")


def test_writing(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    with running(folder, writable=True, token=TOKEN) as address:
        with Client(address, token=TOKEN) as client:
            assert client.add(new_photo(0), "new", label="jay", metadata={"year": 5})["added"] == 1
            assert client.item("new").metadata == {"year": 5}
            with pytest.raises(errors.DataError, match="already names"):
                client.add(new_photo(1), "new")
            assert client.add(new_photo(1), "new", mode="upsert")["replaced"] == 1
            assert client.delete(["new", ids()[0]]) == 2
            assert client.delete("new") == 0
        with Client(address, token="wrong") as stranger, pytest.raises(AccessError, match="token"):
            stranger.delete(ids()[1])


def test_a_server_that_is_not_there() -> None:
    with Client("http://127.0.0.1:9", timeout=5) as client:
        assert not client.ready()
        with pytest.raises(ServerError, match="phpq serve GALLERY"):
            client.info()


def test_a_busy_server_is_asked_again_but_not_for_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("phpq.client.time.sleep", waits.append)
    asked: list[str] = []
    body = {"error": {"kind": "BusyError", "message": "busy", "request_id": "1"}}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if request.method == "GET" and len(asked) > 2:
            return httpx.Response(200, json={"images": 1})
        return httpx.Response(503, json=body, headers={"Retry-After": "99"})

    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        assert client.info() == {"images": 1}
        assert waits == [5.0, 5.0]
        with pytest.raises(BusyError, match="busy"):
            client.delete("a")
        assert asked == ["GET", "GET", "GET", "DELETE"]


def test_a_model_that_knows_its_doubt_is_served(client: Client, tmp_path: Path) -> None:
    assert client.info()["kinds"] is False
    folder = copy_gallery(tmp_path)
    sure_model(folder / "model", 0)
    with running(folder) as address, Client(address) as other:
        assert (other.info()["kinds"], other.info()["codebooks"]) == (True, "model")
        found = other.search(new_photo(2), 5)
        expected = Gallery.open(folder, device="cpu").search(Image.open(io.BytesIO(new_photo(2))))
        assert found.verdict is not None
        assert expected.verdict is not None
        assert (found.verdict.by, found.verdict.label) == ("kinds", expected.verdict.label)
        assert found.verdict.probability == pytest.approx(expected.verdict.probability, abs=1e-4)
        assert found.verdict.sure is not None
        assert found[0].probability == pytest.approx(expected[0].probability, abs=1e-4)
        itself = other.search_id(ids()[1], 5)
        assert itself.verdict is not None
        assert (itself.verdict.sure, itself[0].probability) == (None, None)


def test_a_verdict_by_kinds_is_told_from_one_by_hits(client: Client, gallery: Gallery) -> None:
    answer = client.search_id(ids()[1], 6)
    assert (answer.kinds, answer.verdict) == (None, gallery.search_id(ids()[1], 6).verdict)
    verdict = Verdict("wren", 0.75, (("owl", 0.125), ("jay", 0.0625)), by="kinds")
    content = {
        "query": {"code": "00"}, "total": 9, "best": 1.0, "seconds": 0.1, "hits": [],
        "verdict": VerdictAnswer(**verdict.to_dict()).model_dump(mode="json"),
    }  # fmt: skip
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=content))
    with Client("http://x", transport=transport) as other:
        found = other.search_code("00")
        assert found.verdict == verdict
        assert found.kinds == (("wren", 0.75), *verdict.runners_up)
        sure = replace(verdict, known=0.5, sure=Sure("bird", 1, 0.75, 0.05))
        content["verdict"] = VerdictAnswer(**sure.to_dict()).model_dump(mode="json")
        assert other.search_code("00").verdict == sure
        content["verdict"] = None
        assert other.search_code("00").verdict is None
        content["verdict"] = {"label": "wren", "share": 1.0}  # of a server of 0.1.0
        assert other.search_code("00").kinds is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"error": {"kind": "FormatError", "message": "m"}}', errors.FormatError),
        (b'{"error": {"kind": "PhpqError", "message": "m"}}', errors.PhpqError),
        (b'{"error": {"kind": "unknown_name", "message": "m"}}', ServerError),
        (b'{"error": {"kind": "difflib", "message": "m"}}', ServerError),
        (b"<html>Bad gateway</html>", ServerError),
        (b"[]", ServerError),
    ],
)
def test_any_answer_becomes_an_exception(content: bytes, kind: type[Exception]) -> None:
    assert type(to_error(502, content)) is kind


@pytest.mark.slow  # tests/serve/test_routes_audit.py is much like it
def test_an_audit_is_begun_decided_on_and_undone(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    with (
        running(folder, writable=True, token=TOKEN) as address,
        Client(address, token=TOKEN) as writer,
    ):
        assert writer.audit()["state"] == "none"
        assert writer.audit(start=True)["state"] in ("working", "done")
        told = writer.decide("k", "relabel", ids=[ids()[0]], label="wren")
        assert (told["decided"], writer.item(ids()[0]).label) == (1, "wren")
        with pytest.raises(errors.ConfigError, match="without a yes"):
            writer.decide("k", "delete", ids=[ids()[0]])
        assert writer.undo()["decided"] == 0
        assert writer.item(ids()[0]).label == ids()[0].split("/")[0]
        with pytest.raises(AccessError), Client(address) as stranger:
            stranger.audit(start=True)
