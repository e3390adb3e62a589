"""A small gallery of drawn birds with files and a model, made once, and apps that serve it."""

from __future__ import annotations

import atexit
import functools
import io
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from made_up_galleries import make_queries
from phpq.cli.serve import uvicorn_settings
from phpq.gallery import Gallery
from phpq.gallery.shards import Shards
from phpq.gallery.view import Page
from phpq.gallery.views import Views
from phpq.model import TorchModel
from phpq.model.checkpoint import ModelCard
from phpq.serve import ServerSettings, create_app
from phpq.serve.services import Follower
from tiny_runs import CLASSES, tiny_birds, tiny_config, tiny_network

ADDRESS = "http://127.0.0.1:8000"
TOKEN = "a-token-for-tests-only"
# A busy machine must not turn an answer into a refusal.
_PATIENT = {"rate": 0, "decoders": 1, "request_seconds": 600.0, "decode_seconds": 120.0}
IMAGES = 24
LABELS = ("finch", "heron", "owl", "wren")


@functools.cache
def tiny_model() -> TorchModel:
    """Return an untrained model: what is served does not depend on what was learned."""
    card = ModelCard(config=tiny_config(), class_names=LABELS, dataset="plumage")
    return TorchModel(tiny_network(), card, device=torch.device("cpu"), epochs=0)


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="phpq-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    birds = tiny_birds().train
    rows = []
    for number in range(IMAGES):
        label = LABELS[int(birds.labels[number]) % CLASSES]
        file = folder / "files" / label / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        birds.read(number).resize((64, 48)).save(file, quality=95)
        rows.append(
            {"path": file, "id": f"{label}/{number:02}.jpg", "label": label, "year": 2000 + number}
        )
    gallery = Gallery.create(folder / "birds.gallery", tiny_model(), keep_embeddings=True)
    gallery.add(rows)
    return folder


def copy_gallery(target: Path) -> Path:
    """Put the gallery, with files of its own, into `target`; returns the gallery's folder."""
    shutil.copytree(_template() / "files", target / "files")
    gallery = Gallery.create(target / "birds.gallery", tiny_model(), keep_embeddings=True)
    gallery.add(
        [
            {"path": target / "files" / id, "id": id, "label": id.split("/")[0], "year": 2000 + n}
            for n, id in enumerate(ids())
        ]
    )
    return target / "birds.gallery"


def shared_gallery() -> Path:
    """Return the gallery for tests that change nothing."""
    return _template() / "birds.gallery"


@functools.cache
def ids() -> tuple[str, ...]:
    """Return the ids in the order of insertion."""
    return tuple(_open(shared_gallery()).to_faiss().ids)


def _open(folder: Path) -> Gallery:
    return Gallery.open(folder, device="cpu")


def photo(number: int = 0) -> bytes:
    """Return the file of one image of the gallery."""
    return (_template() / "files" / ids()[number]).read_bytes()


def new_photo(seed: int, kind: str = "PNG") -> bytes:
    """Return an image that no gallery has."""
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


@contextmanager
def served(
    folder: Path | None = None, *, shards: Shards | None = None, **settings: Any
) -> Iterator[TestClient]:
    """Yield a client of an app; neither rates nor waiting are limited unless asked for."""
    chosen = ServerSettings(**{**_PATIENT, **settings})
    app = create_app(_open(folder or shared_gallery()), chosen, shards=shards)
    with TestClient(app, base_url=ADDRESS) as client:
        yield client


@contextmanager
def running(folder: Path | None = None, **settings: Any) -> Iterator[str]:
    """Yield the address of a real server on a free port, in a thread of this process."""
    chosen = ServerSettings(**{**_PATIENT, **settings})
    app = create_app(_open(folder or shared_gallery()), chosen)
    server = uvicorn.Server(uvicorn_settings(app))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class Generations:
    """What readers saw of a gallery whose every commit moves all images to one generation."""

    seen: set[int] = field(default_factory=set)
    mixed: list[set[int]] = field(default_factory=list)  # answers that held two, or too few images


@contextmanager
def reading_generations(views: Views, count: int) -> Iterator[Generations]:
    """Search in two threads, while the views follow the gallery, until the block ends."""
    follower = Follower(views, seconds=0.001)
    follower.start()
    stop, found_by_all, query = threading.Event(), Generations(), make_queries(1)[0]

    def read() -> None:
        while not stop.is_set():
            found = views.current.search(query, Page(top_k=count))
            seen = {hit.metadata["generation"] for hit in found}
            found_by_all.seen.update(seen)
            if len(seen) != 1 or len(found) != count or found.total != count:
                found_by_all.mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    yield found_by_all
    stop.set()
    for reader in readers:
        reader.join()
    follower.close()


def wait_until_served(views: Views, version: int) -> None:
    """Return when the views have followed a commit; a test that waits in vain fails later."""
    end = time.monotonic() + 30
    while views.current.version < version and time.monotonic() < end:
        time.sleep(0.005)
