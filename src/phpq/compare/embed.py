"""Where the images of a comparison lie: what was embedded, by models that were tuned elsewhere.

What is learned in the comparison itself is in `learn.py`. Nothing here needs torch: a model embeds
by what it was loaded with, and the frozen trunk is looked for where there is torch.
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
MEASURED = 500  # images that can be measured in one second, and the root of more in more
PER_CLASS = 10  # images of a class, at least, where only some are taken
_TRIED = 32  # images by which the speed of embedding is measured


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Embedded:
    """All images of a comparison, in every space."""

    images: Images
    frozen: Space | None  # pooled features of the trunk before training
    general: Space | None  # the same or those of a tuned trunk, whitened within learned classes
    learned: tuple[Space, ...]  # with the codebooks that were learned with each
    images_per_second: float  # that the trunk embeds
    skipped: tuple[SkippedImage, ...]
    facts: dict[str, Any]  # trunk, weights, config, how "ours" was learned
    notes: list[str] = field(default_factory=list)  # what was left out, and other remarks


def sample_dataset(dataset: Dataset, most: int) -> tuple[Dataset, str]:
    """Take about `most` of the images, evenly from classes; returns what to tell the reader.

    Each class keeps `PER_CLASS` images or all that it has; where that is still too much, there are
    fewer classes, spread over all.
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
    said = (
        f"{sum(map(len, chosen)):,} of {total:,} images, of {len(kept):,} of {len(names):,} "
        "classes, were drawn at random so that the minutes suffice"
    )
    return replace(dataset, train=chosen[0], test=chosen[1]), said


def fit_seconds(
    dataset: Dataset, seconds: float, *, rate: float, waiting: int
) -> tuple[Dataset, str]:
    """Take as many images as a comparison of so many seconds can, as `sample_dataset` does.

    Half of the time is for `waiting` images, which are not embedded yet, at `rate` a second. And
    every way to search scores every query against every row: that grows with the square.
    """
    most = MEASURED * seconds**0.5
    if waiting > rate * seconds / 2:
        most = min(most, rate * seconds / 2)
    total = len(dataset.train) + len(dataset.test)
    return (dataset, "") if total <= most else sample_dataset(dataset, round_down(most))


def round_down(count: float) -> int:
    """Return the largest of 1, 2, 5, 10, 20 ... below: the same images are drawn the next time."""
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
    """Embed by models that were tuned elsewhere, and by the trunk that the first began from.

    Classes that none of them learned are new. `weights` says where those of the trunk are now;
    `seconds` are what the comparison may take, else it has fewer images.
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
    rate = _rate(first, spaces, dataset.train)
    waiting = len(models) * (len(dataset.train) + len(dataset.test))
    dataset, said = fit_seconds(dataset, seconds, rate=rate, waiting=waiting)
    notes += [said] if said else []
    parts = [
        [
            embed_readable(model, part, others=spaces if model is first else {}, progress=progress)
            for part in (dataset.train, dataset.test)
        ]
        for model in models
    ]
    gallery, queries = parts[0]
    known = {name for model in models for name in model.class_names}
    images = images_of(
        gallery.images, queries.images, [n not in known for n in dataset.class_names]
    )
    if not images.new.any():
        notes.append("classes that were not learned: the models learned all of them")
    if any(model.card.config.data.learned_images == "all" for model in models):
        notes.append("a model also learned the test images of its classes: seen classes flatter it")
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


def images_of(gallery: LabelledImages, queries: LabelledImages, new: Sequence[bool]) -> Images:
    """Return the labels of a comparison; `new` says of each class whether it was not learned."""
    return Images(
        gallery=gallery.labels,
        queries=queries.labels,
        gallery_ids=gallery.ids,
        class_names=gallery.class_names,
        new=np.asarray(new, bool),
    )


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Return a config as plain data; of the weights only the name of the file."""
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
    few = images.subset(np.arange(min(_TRIED, len(images))))
    with suppress(DataError):  # the first image may be a bad one
        embed_readable(model, few.subset([0]), others=others)  # finds memory and kernels
    started = time.perf_counter()
    embed_readable(model, few, others=others)
    return len(few) / (time.perf_counter() - started)


def _minutes(model: Model) -> float | None:
    """Return how long a run learned, by what it wrote; None if that is not here."""
    rows = read_rows(Path(model.folder)) if model.folder is not None else []
    seconds = [float(row["seconds"]) for row in rows if "seconds" in row]
    return sum(seconds) / 60 if seconds else None


def _frozen(model: Model, weights: str | None) -> Embed | None:
    """Return the features of the trunk that a model began from; None if it is not here."""
    config = model.card.config
    trunk = config.model if weights is None else replace(config.model, weights=weights)
    if find_spec("torch") is None or trunk.weights == "none":
        return None
    try:
        from phpq.model.general import frozen_features
        from phpq.model.retrieval import apply_to_pixels, resolve_device

        place = resolve_device("auto")
        describe = frozen_features(trunk, place)
    except (PhpqError, OSError):
        if weights is not None:  # they were asked for
            raise
        return None

    def embed(pixels: NDArray[np.uint8]) -> FloatArray:
        return apply_to_pixels(describe, pixels, config.data, device=place).cpu().numpy()

    return embed
