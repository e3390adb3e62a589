"""A comparison of made-up embeddings, small enough for any test."""

from __future__ import annotations

from typing import Any

import numpy as np

from phpq.codes import Codebooks, normalise_sub_vectors
from phpq.compare.embed import LEARNED, Embedded
from phpq.compare.spaces import Images, Space, unit_space

CLASSES, DIM = 6, 32


def made_up_images(per_class: int = 8, queries: int = 3) -> Images:
    """Return a gallery of six classes, of which the last was not learned."""
    gallery = np.repeat(np.arange(CLASSES), per_class)
    return Images(
        gallery=gallery,
        queries=np.repeat(np.arange(CLASSES), queries),
        gallery_ids=tuple(f"image {row}" for row in range(len(gallery))),
        class_names=tuple(f"kind {number}" for number in range(CLASSES)),
        unseen=np.arange(CLASSES) == CLASSES - 1,
    )


def made_up_space(images: Images, name: str = "frozen trunk", *, seed: int = 0) -> Space:
    """Return embeddings around a centre for each class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, DIM))
    gallery, queries = (
        (centres[labels] + 1.5 * rng.normal(size=(len(labels), DIM))).astype(np.float32)
        for labels in (images.gallery, images.queries)
    )
    return unit_space(name, gallery, queries)


def made_up_learned(images: Images, *, seed: int = 1) -> Space:
    """Return a space with codebooks of two bytes."""
    rng = np.random.default_rng(seed)
    space = made_up_space(images, seed=seed)
    words = normalise_sub_vectors(rng.normal(size=(2 * 16, DIM // 2)).astype(np.float32), 1)
    books = Codebooks(words.reshape(2, 16, DIM // 2))
    return Space(
        name="learned embedding of the 1-byte model",
        gallery=space.gallery,
        queries=space.queries,
        labels=LEARNED,
        minutes=0.5,
        codebooks=books,
        norm="unit",
    )


def made_up_embedded() -> Embedded:
    """Return all spaces of a comparison."""
    images = made_up_images()
    return Embedded(
        images=images,
        frozen=made_up_space(images),
        general=made_up_space(images, "whitened trunk", seed=2),
        learned=(made_up_learned(images),),
        images_per_second=12.0,
        skipped=(),
        facts={"ours": "made up", "trunk": "none", "seed": 0},
        notes=["made up"],
    )


def made_up_content() -> dict[str, Any]:
    """Return what a comparison wrote, with two rows."""

    def row(name: str, group: str, quality: float | None, memory: float) -> dict[str, Any]:
        speed = {"memory": memory, "disk": memory, "one_thread": 1e3, "all_threads": 2e3}
        return {
            "name": name,
            "group": group,
            "uses_labels": group == "phpq",
            "learning_labels": "none",
            "learning_minutes": None,
            "r1": quality,
            "p10": quality,
            "map": quality,
            "unseen_r1": 12.5,
            "unseen_map": 10.0,
            "float_recall": 100.0,
            "speeds": [speed | {"rows": 48, "asked": 1000, "build_seconds": 0.5}],
        }

    return {
        "dataset": "birds",
        "commit": "abc1234",
        "created": "2026-01-02T03:04:05+00:00",
        "minutes": 20.0,
        "seconds": 60.0,
        "machine": {
            "processor": "a processor",
            "platform": "Linux",
            "cores": 2,
            "load": 0.5,
            "packages": {"numpy": "2.0", "torch": None},
        },
        "images": {"gallery": 48, "classes": 6, "seen_queries": 15, "unseen_queries": 3},
        "embedding": {"images_per_second": 12.0, "ours": "made up", "trunk": "t", "seed": 0},
        "chosen": {"codewords": {"PQ 8 bytes": 64}, "penalty": 0.001, "notes": []},
        "rows": [
            row("float search, frozen trunk", "float", 40.0, 2048.0),
            row("phpq 8 bytes, model's codebooks", "phpq", None, 20.0),
        ],
        "left_out": ["image a.jpg: it is damaged"],
        "notes": ["drawn at random"],
        "advice": ["use this."],
    }
