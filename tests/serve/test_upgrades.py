"""A gallery that is upgraded while it is open or served: model and codes change together."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import torch
from PIL import Image
from starlette.testclient import TestClient

from phpq.gallery import Gallery, GalleryStore, ingest
from phpq.gallery.models import MODELS
from phpq.gallery.view import Page
from phpq.model import TorchModel
from phpq.model.checkpoint import ModelCard
from served_galleries import LABELS, TOKEN, copy_gallery, ids, new_photo, photo, running, served
from tiny_runs import tiny_config, tiny_network


def other_model() -> TorchModel:
    """Return a model that sees images at another size and gives shorter codes."""
    changes = ("quantizer.num_codebooks=2", "data.store_size=40")
    card = ModelCard(config=tiny_config(*changes), class_names=LABELS, dataset="plumage")
    network = tiny_network(*changes, seed=5)
    return TorchModel(network, card, device=torch.device("cpu"), epochs=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_gallery(tmp_path)


def scores(found: Any) -> list[tuple[str, float]]:
    return [(hit.id, round(hit.score, 4)) for hit in found]


def code_by(model: Any, content: bytes) -> bytes:
    with Image.open(io.BytesIO(content)) as image:
        return bytes(model.encode(image).tobytes())


def add_photo(client: TestClient) -> None:
    added = client.post(
        "/api/v1/items",
        files={"image": new_photo(8)},
        data={"id": "new"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert added.json()["added"] == 1


def expected(model: Any, folder: Path, query: Image.Image, count: int) -> list[float]:
    """Return the best scores of a plain loop over the codes that a model gives to the images."""
    books = model.codebooks
    parts = model.embed(query)[0].reshape(books.num_codebooks, -1)
    parts = parts / np.linalg.norm(parts, axis=1, keepdims=True)
    found = []
    for name in ids():
        code = model.encode(folder.parent / "files" / name)[0]
        found.append(sum(float(parts[m] @ books.codewords[m, code[m]]) for m in range(len(code))))
    return sorted(found, reverse=True)[:count]


def test_an_open_gallery_searches_each_version_with_its_model(folder: Path) -> None:
    gallery, reader = Gallery.open(folder, device="cpu"), Gallery.open(folder, device="cpu")
    old, new = gallery.model, other_model()
    with Image.open(io.BytesIO(new_photo(3))) as opened:
        query = opened.convert("RGB")
    before = scores(gallery.search(query, 5))
    report = gallery.upgrade(new)
    assert (report.images, report.bits) == (24, 6)
    assert gallery.made_by(new)
    assert gallery.embed(query).shape == (1, new.embedding_dim())
    after = scores(gallery.search(query, 5))
    plain = expected(new, folder, query, 5)
    assert [score for _, score in after] == pytest.approx(plain, abs=2e-3)
    assert gallery.get(ids()[0]).metadata == {"year": 2000}
    assert scores(gallery.search(query, 5, rerank=24)) != before
    # Who has not looked again reads the old version with the old model, and then both anew.
    assert scores(reader.search(query, 5)) == before
    assert reader.model is not new
    reader.refresh()
    assert scores(reader.search(query, 5)) == after
    gallery.add([{"image": query, "id": "query", "label": "wren"}])
    assert "query" in {hit.id for hit in gallery.search(query, 25) if hit.share == 1}
    gallery.delete("query")
    gallery.rollback()
    assert gallery.made_by(old)
    assert scores(gallery.search(query, 5)) == before
    gallery.rollback()
    gallery.drop_old()
    assert scores(Gallery.open(folder, device="cpu").search(query, 5)) == after
    assert gallery.verify().sound
    assert [path.name for path in (folder / MODELS).iterdir()] == [new.fingerprint()]


def test_a_server_swaps_model_and_codes_together(folder: Path) -> None:
    new = other_model()
    with served(folder, reload_seconds=3600.0, writable=True, token=TOKEN) as client:
        services = client.app.state.services  # type: ignore[attr-defined]

        def ask() -> Any:
            return client.post("/api/v1/search", files={"image": photo(2)}).json()

        before, info = ask(), client.get("/api/v1/info").json()
        held = services.views.current
        Gallery.open(folder, device="cpu").upgrade(new)
        assert ask()["query"] == before["query"]
        # A request that began before the swap ends with the pair that it began with.
        vector = services.embed(held, photo(2), "a.jpg")
        services.views.reload()
        found = held.search(vector, Page(top_k=10))
        assert [hit.id for hit in found] == [hit["id"] for hit in before["hits"]]
        after, told = ask(), client.get("/api/v1/info").json()
        assert after["query"]["code"] == code_by(new, photo(2)).hex()
        assert ids()[2] in {hit["id"] for hit in after["hits"] if hit["score"] == after["best"]}
        assert (told["bits"], told["model"]["fingerprint"]) == (6, new.fingerprint())
        assert told["model"]["fingerprint"] != info["model"]["fingerprint"]
        explained = client.post(
            "/api/v1/explain", files={"image": photo(2)}, data={"hit_id": ids()[2]}
        )
        assert len(explained.json()["shares"]) == 2
        # What is added over HTTP is embedded by the model of the version that it is added to.
        add_photo(client)
        code = GalleryStore.open(folder).find(["new"])["new"].code
        assert code.tobytes() == code_by(new, new_photo(8))


def test_an_add_that_meets_an_upgrade_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, embed, seen = other_model(), ingest.encode_items, []

    def late(items: Any, model: Any, **settings: Any) -> Iterator[Any]:
        for batch in embed(items, model, **settings):
            seen.append(model.fingerprint())
            if len(seen) == 1:
                Gallery.open(folder, device="cpu").upgrade(new)
            yield batch

    monkeypatch.setattr(ingest, "encode_items", late)
    with served(folder, reload_seconds=3600.0, writable=True, token=TOKEN) as client:
        add_photo(client)
    assert len(set(seen)) == 2
    code = GalleryStore.open(folder).find(["new"])["new"].code
    assert code.tobytes() == code_by(new, new_photo(8))


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with running(folder, reload_seconds=0.05) as found:
        yield found


@pytest.mark.slow
def test_clients_of_a_server_see_one_model_or_the_other(folder: Path, address: str) -> None:
    gallery, new = Gallery.open(folder, device="cpu"), other_model()
    codes = {code_by(model, photo(1)).hex() for model in (gallery.model, new)}
    answers: dict[str, set[str]] = {code: set() for code in codes}
    problems: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            said = requests.post(f"{address}/api/v1/search", files={"image": photo(1)}, timeout=60)
            if said.status_code != 200 or said.json()["query"]["code"] not in answers:
                problems.append(said.text)
                continue
            hits = said.json()["hits"]
            told = repr([(hit["id"], round(hit["score"], 4)) for hit in hits])
            answers[said.json()["query"]["code"]].add(told)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    gallery.upgrade(new)
    for _ in range(4):
        gallery.rollback()
        stop.wait(0.5)
    stop.set()
    for client in clients:
        client.join()
    assert not problems
    assert [len(told) for told in answers.values()] == [1, 1]  # one answer of each model
