"""Galleries that own their codebooks, of small pictures of one colour: quick to fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from made_up_galleries import FakeModel, general_embedding, make_own_store
from phpq.codes import FloatArray
from phpq.gallery import AddReport, GalleryStore
from phpq.gallery._part import batches
from phpq.gallery.ingest import Ingest
from phpq.gallery.refit import RefitReport, refit
from phpq.gallery.view import GalleryView

KINDS = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200), "grey": (99, 99, 99)}


def colours(kind: str, count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Return colours of a kind, each a little different."""
    generator = np.random.default_rng([seed, list(KINDS).index(kind)])
    near = np.clip(generator.normal(KINDS[kind], 12, size=(count, 3)), 0, 255)
    return [tuple(each) for each in near.astype(int).tolist()]


def pictures(
    kinds: Sequence[str], count: int, *, seed: int = 0, labelled: bool = True
) -> list[dict[str, Any]]:
    """Return what `Ingest` takes: `count` pictures of each kind, ids such as "red/0/3"."""
    return [
        {
            "id": f"{kind}/{seed}/{number}",
            "image": Image.new("RGB", (2, 2), colour),
            "label": kind if labelled else None,
        }
        for kind in kinds
        for number, colour in enumerate(colours(kind, count, seed))
    ]


def write_pictures(folder: Path, kinds: Sequence[str], count: int, *, seed: int = 0) -> Path:
    """Write pictures as files, a folder of each kind."""
    for row in pictures(kinds, count, seed=seed):
        path = folder / row["label"] / f"{row['id'].replace('/', '-')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(path)
    return folder


def add(store: GalleryStore, source: Any, batch_size: int = 16, **settings: Any) -> AddReport:
    """Add a source with the model that is made up."""
    work = Ingest(store, FakeModel().model, batch_size=batch_size, **settings)
    return work.run(source, metadata={})


def filled(folder: Path, kinds: Sequence[str] = tuple(KINDS), **settings: Any) -> GalleryStore:
    """Make a gallery of ten pictures of each kind."""
    store = make_own_store(folder, **settings)
    add(store, pictures(kinds, 10))
    return store


def fit_again(store: GalleryStore, **settings: Any) -> RefitReport:
    """Refit with the model that is made up."""
    return refit(store, lambda: FakeModel().model, **settings)


def query_for(kind: str, seed: int = 9) -> FloatArray:
    """Return the embedding (1, D) of a colour of a kind that no gallery holds."""
    return general_embedding(np.array(colours(kind, 1, seed), np.uint8))


def view_of(store: GalleryStore) -> GalleryView:
    """Open the version of a store for reading."""
    opened = GalleryStore.open(store.folder, version=store.version)
    return GalleryView(opened, FakeModel().codebooks)


def codes_of(store: GalleryStore) -> dict[str, bytes]:
    """Return the codes by id, in order of insertion."""
    return {
        name: bytes(code)
        for table in batches(store)
        for name, code in zip(table["id"].to_pylist(), table["code"].to_pylist(), strict=True)
    }


def expected_codes(store: GalleryStore) -> dict[str, bytes]:
    """Return the codes that its codebooks give to its embeddings, one row at a time."""
    books = store.own_codebooks()
    return {
        record.id: books.encode(record.embedding.astype(np.float32)[None], [record.label])[
            0
        ].tobytes()
        for record in store.records(store.dataset.to_table())
        if record.embedding is not None
    }
