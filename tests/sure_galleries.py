"""Galleries that hold enough images to know how likely their answers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from made_up_galleries import FakeModel, general_embedding, make_own_store, make_store
from own_galleries import add
from phpq.additive.probabilities import ERROR_RATES, NEVER, Calibration, ProbabilityModel
from phpq.codes import FloatArray
from phpq.gallery import GalleryStore
from phpq.gallery.owned import write_calibration, write_codebooks
from phpq.model.checkpoint import WEIGHTS, stored_fingerprint, write_chances

# Near ones have names of one family.
COLOURS = {
    "red light": (230, 40, 40), "red dark": (170, 20, 20), "green light": (40, 230, 40),
    "green dark": (20, 160, 20), "blue light": (60, 60, 240), "blue dark": (20, 20, 150),
}  # fmt: skip
PARENTS = {name: name.split()[0] for name in COLOURS} | {"red": "warm", "green": "cold"}
FAMILY = "Drawn birds"  # what `sure_at` lets all kinds belong to
STRANGE = {"yellow": (240, 240, 30), "grey": (120, 120, 120)}


def shades(kind: str, count: int, seed: int) -> list[tuple[int, int, int]]:
    """Return colours of a kind, each a little different."""
    known = COLOURS | STRANGE
    generator = np.random.default_rng([seed, list(known).index(kind)])
    near = np.clip(generator.normal(known[kind], 14, size=(count, 3)), 0, 255)
    return [tuple(each) for each in near.astype(int).tolist()]


def photos(kinds: list[str], count: int, seed: int) -> list[dict[str, Any]]:
    """Return what a gallery takes: pictures with ids and labels."""
    return [
        {"id": f"{kind}/{seed}/{n}", "image": Image.new("RGB", (2, 2), shade), "label": kind}
        for kind in kinds
        for n, shade in enumerate(shades(kind, count, seed))
    ]


def sure_store(folder: Path, **settings: Any) -> GalleryStore:
    """Make a gallery of 25 pictures of each of six kinds."""
    store = make_own_store(folder, **settings)
    add(store, photos(list(COLOURS), 25, seed=0), batch_size=256)
    return store


def question(kind: str, seed: int = 9) -> FloatArray:
    """Return the embedding (1, D) of a picture that no gallery holds."""
    return general_embedding(np.array(shades(kind, 1, seed), np.uint8))


def coded_store(folder: Path, *, kinds: list[str] | None = None) -> GalleryStore:
    """Make a gallery of 25 pictures of each of six kinds, with the codebooks of its model."""
    store = make_store(folder)
    add(store, photos(kinds or list(COLOURS), 25, seed=0), batch_size=256)
    return store


def coded_question(kind: str, seed: int = 9) -> FloatArray:
    """Return the same as `question` in the space of the model's codes."""
    shade = np.array(shades(kind, 1, seed), np.uint8)
    return FakeModel().embed_pixels(shade[:, :, None, None])


def certain(level: int | None) -> ProbabilityModel:
    """Return fitted that are sure at a level, whatever is asked; None: at none."""
    coverage = (0.5,) * len(ERROR_RATES)
    return ProbabilityModel(
        weights=(1.0, 0.0, 0.0, 0.0),
        parent_weights=((0.0, 1.0),),
        cut_offs=tuple((0.0 if at == level else NEVER,) * len(ERROR_RATES) for at in (0, 1)),
        named=coverage,
        answered=coverage,
        images=100,
    )


def sure_model(model: Path, level: int | None) -> Calibration:
    """Let the model of a folder be sure at a level, as if `phpq train` had fitted that."""
    calibration = Calibration(sharpness=4.0, probabilities=certain(level))
    write_chances(model, calibration, stored_fingerprint(model / WEIGHTS))
    return calibration


def sure_at(gallery: Path, level: int | None) -> None:
    """Let a gallery, however small, be sure at a level, whatever it is asked; None: at none."""
    store = GalleryStore.open(gallery)
    fitted = certain(level)
    if not store.manifest.owns_codebooks:
        labels = store.dataset.to_table(columns=["label"])["label"].unique().to_pylist()
        calibration = Calibration(
            sharpness=4.0, probabilities=fitted, parents=dict.fromkeys(labels, FAMILY)
        )
        with store.changing():
            store.commit_manifest(
                replace(store.manifest, chances=write_calibration(store.folder, calibration))
            )
        return
    with store.changing():
        books = store.own_codebooks()
        parents = dict.fromkeys(books.class_names, FAMILY)
        books = replace(books, probabilities=fitted, parents=parents)
        store.commit_manifest(replace(store.manifest, books=write_codebooks(store.folder, books)))
