"""Embeds the images of a comparison by models that were trained elsewhere.

What is learned in the comparison itself is in `learn.py`. torch is needed for the frozen trunk
only, which is left out without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray
from phpq.compare.spaces import Images, Space, unit_space
from phpq.config import RunConfig, to_dict
from phpq.data import Dataset, LabelledImages, SkippedImage
from phpq.data.images import draw_per_class, spread
from phpq.errors import DataError, PhpqError
from phpq.evaluation.embedding import Embed, EmbeddedImages, Progress, embed_readable
from phpq.evaluation.history import read_rows

if TYPE_CHECKING:
    from phpq.model import Model

LEARNED, NONE = "of the learned classes", "none"
IMAGES_PER_ROOT_SECOND = 500  # images that are measured in t seconds, over the root of t
PER_CLASS = 10  # least images per class of a sample
_TIMED_IMAGES = 32  # by which the speed of embedding is measured


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Embedded:
    """All images of a comparison, in every space."""

    images: Images
    frozen: Space | None  # pooled features of the pretrained trunk
    general: Space | None  # features of the same or of a tuned trunk, whitened within classes
    learned: tuple[Space, ...]  # each with its codebooks
    images_per_second: float  # of embedding, decoding included
    skipped: tuple[SkippedImage, ...]
    facts: dict[str, Any]  # trunk, weights, config, how "ours" was learned
    notes: list[str] = field(default_factory=list)  # what was left out, and other remarks


def sample_dataset(dataset: Dataset, most: int) -> tuple[Dataset, str]:
    """Draw about `most` of the images, evenly from classes; returns them and a note about it.

    Each class keeps `PER_CLASS` images, or all that it has. If that is still too much, some classes
    are taken, spread evenly.
    """
    parts, names = (dataset.train, dataset.test), dataset.class_names
    total = sum(map(len, parts))
    if total <= most:
        return dataset, ""
    per_class = max(PER_CLASS, most // len(names))
    sizes = sum(part.class_sizes() for part in parts)
    kept, taken = np.arange(len(names)), int(np.minimum(sizes, per_class).sum())
    if taken > most:
        count = max(2, len(names) * most // taken)
        kept = spread(len(names), count)
    share = np.minimum(1, per_class / np.maximum(sizes, 1))
    chosen = []
    for part in parts:
        counts = np.ceil(part.class_sizes() * share).astype(np.int64)
        counts[np.setdiff1d(np.arange(len(names)), kept)] = 0
        drawn = part.subset(draw_per_class(part.ids, part.labels, counts, seed=0))
        numbers = np.searchsorted(kept, drawn.labels)
        chosen.append(replace(drawn, labels=numbers, class_names=tuple(names[k] for k in kept)))
    note = (
        f"{sum(map(len, chosen)):,} of {total:,} images, of {len(kept):,} of {len(names):,} "
        "classes, were drawn at random so that the minutes suffice"
    )
    return replace(dataset, train=chosen[0], test=chosen[1]), note


def sample_for_time(
    dataset: Dataset, seconds: float, *, rate: float, waiting: int
) -> tuple[Dataset, str]:
    """Sample as many images as a comparison can measure in some seconds.

    Half of the time is for embedding `waiting` images at `rate` per second. Scoring every query
    against every row takes time that grows with the square of the images.
    """
    most = IMAGES_PER_ROOT_SECOND * seconds**0.5
    if waiting > rate * seconds / 2:
        most = min(most, rate * seconds / 2)
    total = len(dataset.train) + len(dataset.test)
    return (dataset, "") if total <= most else sample_dataset(dataset, round_down(most))


def round_down(count: float) -> int:
    """Round down to 1, 2, 5, 10, 20 ..., so that another run most likely draws the same images."""
    power = 10 ** int(np.floor(np.log10(max(count, 1))))
    return int(power * max(step for step in (1, 2, 5) if step * power <= max(count, 1)))


def embed_with_models(
    dataset: Dataset,
    models: Sequence[Model],
    *,
    weights: str | None = None,
    seconds: float,
    progress: Progress | None = None,
) -> Embedded:
    """Embed by models that were trained elsewhere, and by the pretrained trunk of the first.

    Classes that none of them learned are unseen. `weights` is the place of the trunk's weights, if
    it has changed. Images are sampled if the comparison would take more than `seconds`.
    """
    first, notes = models[0], list[str]()
    describe = _frozen(first, weights)
    spaces: dict[str, Embed] = {}
    if first.has_general:
        spaces["general"] = partial(first.embed_pixels, space="general")
    else:
        notes.append("rows over the general embedding: the model has none")
    if describe is not None:
        spaces["frozen"] = describe
    known = {name for model in models for name in model.class_names}
    dataset, note = _without_learned_queries(dataset, models, known)
    notes += [note] if note else []
    rate = _rate(first, spaces, dataset.train)
    waiting = len(models) * (len(dataset.train) + len(dataset.test))
    dataset, note = sample_for_time(dataset, seconds, rate=rate, waiting=waiting)
    notes += [note] if note else []
    parts = [
        [
            embed_readable(model, part, others=spaces if model is first else {}, progress=progress)
            for part in (dataset.train, dataset.test)
        ]
        for model in models
    ]
    gallery, queries = parts[0]
    images = images_of(
        gallery.images, queries.images, [n not in known for n in dataset.class_names]
    )
    if not images.unseen.any():
        notes.append("classes that were not learned: the models learned all of them")
    minutes = _minutes(first)
    return Embedded(
        images=images,
        frozen=_space("frozen trunk", "frozen", gallery, queries, labels=NONE),
        general=_space(
            "general embedding", "general", gallery, queries, labels=LEARNED, minutes=minutes
        ),
        learned=tuple(
            _learned_space(model, *both) for model, both in zip(models, parts, strict=True)
        ),
        images_per_second=rate,
        skipped=(*gallery.skipped, *queries.skipped),
        facts={
            "ours": "models that were tuned elsewhere",
            "models": list(map(_model_facts, models)),
            "trunk": first.card.config.model.backbone,
            "seed": first.card.config.training.seed,
        },
        notes=notes,
    )


def _without_learned_queries(
    dataset: Dataset, models: Sequence[Model], known: set[str]
) -> tuple[Dataset, str]:
    """Leave out queries that a model has learned, if others are left; and say so."""
    if not any(model.card.config.data.learned_images == "all" for model in models):
        return dataset, ""
    unseen = [name not in known for name in dataset.class_names]
    rows = np.flatnonzero(np.array(unseen)[dataset.test.labels])
    if len(rows) == len(dataset.test):
        return dataset, ""
    if not len(rows):
        return dataset, "a model also learned the queries: they flatter it"
    note = (
        f"{len(dataset.test) - len(rows):,} queries of learned classes: a model also learned the "
        "test images of its classes, so that they say nothing of new photos"
    )
    return replace(dataset, test=dataset.test.subset(rows)), note


def _learned_space(model: Model, gallery: EmbeddedImages, queries: EmbeddedImages) -> Space:
    return Space(
        name=f"learned embedding of the {model.bits // 8}-byte model",
        gallery=gallery.embeddings,
        queries=queries.embeddings,
        labels=LEARNED,
        minutes=_minutes(model),
        codebooks=model.codebooks,
        norm=model.query_norm,
    )


def _model_facts(model: Model) -> dict[str, Any]:
    return {
        "folder": "" if model.folder is None else model.folder.name,
        "bits": model.bits,
        "epochs": model.epochs,
        "fingerprint": model.fingerprint(),
        "config": plain_config(model.card.config),
    }


def images_of(gallery: LabelledImages, queries: LabelledImages, unseen: Sequence[bool]) -> Images:
    """Return the labels of a comparison; `unseen` tells of each class whether it is."""
    return Images(
        gallery=gallery.labels,
        queries=queries.labels,
        gallery_ids=gallery.ids,
        class_names=gallery.class_names,
        unseen=np.asarray(unseen, bool),
    )


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Return a config as plain data, with the name of the weights file without its folder."""
    data = to_dict(config)
    data["model"]["weights"] = Path(data["model"]["weights"]).name
    return data


def _space(
    name: str, key: str, gallery: EmbeddedImages, queries: EmbeddedImages, **facts: Any
) -> Space | None:
    if key not in gallery.others:
        return None
    return unit_space(name, gallery.others[key], queries.others[key], **facts)


def _rate(model: Model, others: dict[str, Embed], images: LabelledImages) -> float:
    """Return images per second of all embeddings together, decoding included."""
    sample = images.subset(np.arange(min(_TIMED_IMAGES, len(images))))
    with suppress(DataError):  # the first image may be a bad one
        embed_readable(model, sample.subset([0]), others=others)  # warm-up
    started = time.perf_counter()
    embed_readable(model, sample, others=others)
    return len(sample) / (time.perf_counter() - started)


def _minutes(model: Model) -> float | None:
    """Return the training time by the metrics of a run; None if these are not here."""
    rows = read_rows(Path(model.folder)) if model.folder is not None else []
    seconds = [float(row["seconds"]) for row in rows if "seconds" in row]
    return sum(seconds) / 60 if seconds else None


def _frozen(model: Model, weights: str | None) -> Embed | None:
    """Return the features of a model's pretrained trunk; None if its weights are not here."""
    config = model.card.config
    trunk = config.model if weights is None else replace(config.model, weights=weights)
    if find_spec("torch") is None or trunk.weights == "none":
        return None
    try:
        from phpq.model.general import frozen_features
        from phpq.model.retrieval import apply_to_pixels, resolve_device

        device = resolve_device("auto")
        describe = frozen_features(trunk, device)
    except (PhpqError, OSError):
        if weights is not None:  # given by the user
            raise
        return None

    def embed(pixels: NDArray[np.uint8]) -> FloatArray:
        return apply_to_pixels(describe, pixels, config.data, device=device).cpu().numpy()

    return embed
