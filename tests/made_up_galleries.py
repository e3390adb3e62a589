"""Galleries of made-up codes, without a model: quick to make and to compare with a plain scan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray, QueryNorm, Space
from phpq.config import DataConfig
from phpq.gallery import GalleryStore, Record
from phpq.gallery.folder import new_manifest, new_own_manifest
from phpq.gallery.view import GalleryView
from phpq.gallery.views import Views

if TYPE_CHECKING:
    from phpq.model import Model

BOOKS, SIZE, SUB_DIM = 3, 4, 2
DIM = BOOKS * SUB_DIM
TIED_ROWS = 90  # of `make_ties`


def make_codebooks() -> Codebooks:
    """Return small codebooks, always the same."""
    words = np.random.default_rng(0).normal(size=(BOOKS, SIZE, SUB_DIM))
    return Codebooks((words / np.linalg.norm(words, axis=2, keepdims=True)).astype(np.float32))


def make_store(folder: Path, *, keep_embeddings: bool = False) -> GalleryStore:
    """Make an empty gallery without a model."""
    manifest = new_manifest(make_codebooks(), "made-up", keep_embeddings=keep_embeddings)
    return GalleryStore.create(folder, manifest)


GENERAL_DIM = 12  # of embeddings that galleries with their own codebooks hold


def make_own_store(folder: Path, *, bits: int = 16, keep_embeddings: bool = True) -> GalleryStore:
    """Make an empty gallery that will own its codebooks, without a model."""
    manifest = new_own_manifest(GENERAL_DIM, "made-up", bits=bits, keep_embeddings=keep_embeddings)
    return GalleryStore.create(folder, manifest)


def make_record(name: str, number: int = 0, *, label: str | None = "a", **metadata: Any) -> Record:
    """Return a record whose code follows from `number`."""
    code = np.array([number // SIZE**book % SIZE for book in range(BOOKS)], np.uint8)
    return Record(name, f"/files/{name}", label, bytes([number % 256]) * 32, code, metadata)


def make_ties(folder: Path) -> GalleryStore:
    """Make a gallery of five codes, with equal embeddings, in another order than inserted."""
    store = make_store(folder, keep_embeddings=True)
    vectors = np.random.default_rng(3).normal(size=(TIED_ROWS, DIM)).astype(np.float16)
    vectors[40:45] = vectors[10]
    records = [
        replace(make_record(f"i{n}", n % 5, label="ab"[n % 2]), embedding=vectors[n])
        for n in range(TIED_ROWS)
    ]
    for start in range(0, TIED_ROWS, 30):
        store.put(records[start : start + 30])
    store.put([records[7], replace(records[31], label="c")])
    store.delete(["i12"])
    return store


def make_queries(count: int, seed: int = 0) -> FloatArray:
    """Return (count, DIM) float32."""
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def plain_scan(
    records: Mapping[str, Record], query: FloatArray, top_k: int
) -> list[tuple[str, float]]:
    """Return the best (id, score) pairs of a dictionary in order of insertion, by plain loops."""
    words = make_codebooks().codewords
    scored = []
    for place, (name, record) in enumerate(records.items()):
        score = np.float32(0)
        for book in range(BOOKS):
            part = query[book * SUB_DIM : (book + 1) * SUB_DIM].astype(np.float64)
            part /= np.linalg.norm(part)
            score += np.float32(part @ words[book, record.code[book]])
        scored.append((-round(float(score), 5), place, name))
    return [(name, -score) for score, _, name in sorted(scored)[:top_k]]


def plain_float_score(query: FloatArray, row: FloatArray, norm: QueryNorm) -> float:
    """Return the inner product of a query (D,) with the unit sub-vectors of a row, by loops."""
    score = 0.0
    for book in range(BOOKS):
        part = slice(book * SUB_DIM, (book + 1) * SUB_DIM)
        asked = query[part].astype(np.float64)
        asked = asked / np.linalg.norm(asked) if norm == "unit" else asked
        own = row[part].astype(np.float64)
        score += float(asked @ (own / np.linalg.norm(own)))
    return score


def general_embedding(colours: NDArray[np.uint8]) -> FloatArray:
    """Return (n, GENERAL_DIM) for (n, 3) colours: near ones have near embeddings."""
    generator = np.random.default_rng(1)
    mix, shift = generator.normal(size=(3, GENERAL_DIM)), generator.normal(size=GENERAL_DIM)
    waves = (colours[:, :, None] / 60 * mix[None]).sum(axis=1) + 3 * shift
    embeddings: FloatArray = np.cos(waves).astype(np.float32)
    return embeddings


class FakeModel:
    """Codes from pixels: the three colours of the first pixel name the codewords."""

    card = SimpleNamespace(config=SimpleNamespace(data=DataConfig(store_size=2, fit="squash")))

    folder: Path | None = None  # it was read from none

    def __init__(self) -> None:
        self.codebooks = make_codebooks()
        self.batches: list[int] = []  # images that it was given at once

    @property
    def model(self) -> Model:
        """Itself, as what uses a model takes it."""
        return cast("Model", self)

    def embed_pixels(
        self, pixels: NDArray[np.uint8], *, batch_size: int = 64, space: Space = "learned"
    ) -> FloatArray:
        assert len(pixels) <= batch_size
        self.batches.append(len(pixels))
        if space == "general":
            return general_embedding(pixels[:, :, 0, 0])
        return self.codebooks.decode(np.ascontiguousarray(pixels[:, :, 0, 0] // 64))


def make_views(folder: Path, **options: Any) -> Views:
    """Return the views of a gallery of made-up codes."""
    return Views(folder, lambda _: FakeModel().model, **options)


def record_at(view: GalleryView, place: int) -> Record:
    """Return the image at a place in the order of insertion."""
    return view.find(view.summaries(np.array([place]))[0].id)[1]
