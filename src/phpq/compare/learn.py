"""Learns the embeddings of a comparison over a frozen trunk, in minutes on a CPU.

The features of the trunk are computed once (`phpq.training.features`). They are compared as they
are, whitened, and as inputs of heads of several code lengths, which never see a query or a held-out
class. For drawn birds the trunk itself is learned first, on other species.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from phpq.codes import FloatArray, normalise_sub_vectors
from phpq.compare.embed import (
    LEARNED,
    NONE,
    Embedded,
    images_of,
    plain_config,
    sample_for_time,
)
from phpq.compare.spaces import Images, Space, unit_space
from phpq.config import RunConfig, override, with_bits
from phpq.data import Dataset, SkippedImage, hold_out_classes, open_dataset
from phpq.data.batches import Views
from phpq.data.decode import decode_readable
from phpq.data.images import learned_classes
from phpq.errors import DataError
from phpq.evaluation.search import SearchSetup, search
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.general import whiten
from phpq.model.method import build_method
from phpq.model.retrieval import resolve_device
from phpq.model.weights import write_safetensors
from phpq.recipes import drawn_settings, resolve_config
from phpq.training import Reporter, Trainer, build_trainer, run_epochs
from phpq.training.features import count_uncached, load_features, select_features
from phpq.training.pixels import TrainingPixels
from phpq.training.progress import Advance

LENGTHS = (64, 32, 16)  # bits, the most important first: time may run out
HELD_OUT = 0.2  # default share of the classes that no head learns
DRAWN_EPOCHS = 24  # of a trunk for drawn birds
_LEARNING_SHARE = 0.6  # of the time, after which no further head is started
_TIMED_IMAGES = 32  # by which the speed of the trunk is measured


class _Recorder(Reporter):
    """Forwards messages and tasks to another reporter, and collects skipped images."""

    def __init__(self, inner: Reporter) -> None:
        self.inner = inner
        self.images: list[SkippedImage] = []

    def message(self, text: str) -> None:
        self.inner.message(text)

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance | None]:
        with self.inner.task(title, total) as advance:
            yield advance

    def skipped(self, images: Sequence[SkippedImage]) -> None:
        self.images += images


def learn_and_embed(
    dataset: Dataset,
    config: RunConfig,
    *,
    share: float | None,
    seconds: float,
    cache: Path | None = None,
    reporter: Reporter | None = None,
) -> Embedded:
    """Compute the features of a frozen trunk, and learn heads of several code lengths.

    The last `share` of the classes is held out; None is `HELD_OUT`, if there are enough classes.
    Half of the `seconds` is for the trunk: if that is too little for all images, some are drawn.
    Heads that would start after `_LEARNING_SHARE` of the time are left out.
    """
    ends = time.perf_counter() + _LEARNING_SHARE * seconds
    _learned_count(dataset, share)  # a share that cannot be held out is an error at once
    recorder = _Recorder(reporter or Reporter())
    torch.manual_seed(config.training.seed)
    device = resolve_device("auto")
    network = build_method(config, len(dataset.class_names), load_weights=True).to(device)
    frozen = freeze_network(network, config)
    rate = _rate(dataset, config, frozen)
    waiting = count_uncached(dataset, config, frozen, cache)
    dataset, note = sample_for_time(dataset, seconds, rate=rate, waiting=waiting)
    passing = f"{waiting:,} images pass the trunk" if waiting else "the features are there already"
    recorder.message(note or passing)
    count, remark = _learned_count(dataset, share)
    notes = [text for text in (note, remark) if text]
    pixels = load_features(dataset, config, frozen, reporter=recorder, cache=cache)
    images = images_of(
        pixels.train, pixels.test, [label >= count for label in range(len(dataset.class_names))]
    )
    pooled = _pooled(pixels, frozen, images)
    general, took = _whitened(pixels, frozen, count)
    learned: list[Space] = []
    for bits in LENGTHS:
        if learned and time.perf_counter() > ends:
            notes.append(f"phpq of {bits // 8} bytes: the minutes were over")
            continue
        recorder.message(f"learning codes of {bits} bits")
        learned.append(_learn(pixels, with_bits(config, bits), count, device=device))
    return Embedded(
        images=images,
        frozen=pooled,
        general=unit_space("whitened trunk", *general, labels=LEARNED, minutes=took / 60),
        learned=tuple(reversed(learned)),
        images_per_second=rate,
        skipped=tuple(recorder.images),
        facts={
            "ours": "heads learned in this comparison, over the frozen trunk; a model that was "
            "tuned as a whole comes by --model",
            "trunk": config.model.backbone,
            "weights": Path(config.model.weights).name,
            "seed": config.training.seed,
            "config": plain_config(config),
        },
        notes=notes,
    )


def _learned_count(dataset: Dataset, share: float | None) -> tuple[int, str]:
    """Return how many classes are learned, and a note if none are held out."""
    classes = len(dataset.class_names)
    if share == 0:
        return classes, "classes that were not learned: none were held out"
    try:
        count = learned_classes(dataset, HELD_OUT if share is None else share)
        if not (dataset.test.labels < count).any():
            raise DataError("No learned class has a query.")
    except DataError:
        if share is not None:
            raise
        return classes, f"classes that were not learned: of {classes} classes none can be held out"
    return count, ""


def _rate(dataset: Dataset, config: RunConfig, frozen: FrozenPart) -> float:
    """Return the images per second of decoding and the trunk."""
    sample = dataset.train.subset(np.arange(min(_TIMED_IMAGES, len(dataset.train))))
    views = Views(config.data)
    seconds = 0.0
    for _ in range(2):  # the first warms up
        started = time.perf_counter()
        decoded = decode_readable(sample, config.data, workers=config.training.workers)
        if len(decoded.pixels):
            frozen.features(views.encode(torch.from_numpy(decoded.pixels).to(frozen.device)))
        seconds = time.perf_counter() - started
    return len(sample) / seconds


def _parts(pixels: TrainingPixels, columns: slice) -> list[FloatArray]:
    """Return some columns of the features of both splits, as float32."""
    return [
        np.ascontiguousarray(rows[:][:, columns], np.float32)
        for rows in (pixels.train_pixels, pixels.test_pixels)
    ]


def _pooled(pixels: TrainingPixels, frozen: FrozenPart, images: Images) -> Space:
    """Return the pooled features that are best for held-out gallery images.

    They are the average of the last level, or generalized means (GeM) of the last two.
    """
    channels = frozen.trunk.channels
    width = sum(channels[-frozen.general_levels :])
    ways = {
        "average of its last level": slice(-width - channels[-1], -width),
        "generalized means of its last levels": slice(-width, None),
    }
    spaces = {
        name: unit_space("frozen trunk", *_parts(pixels, columns), labels=NONE)
        for name, columns in ways.items()
    }
    validation = images.validation_split()
    if validation is None:
        return next(iter(spaces.values()))
    rows, split = validation
    gallery, queries = split.rows(query=False), split.rows(query=True)

    def mean_precision(space: Space) -> float:
        way, labels = SearchSetup("", space.gallery[rows]), images.gallery[rows]
        return search(way, labels, "", gallery=gallery, queries=queries).values["map"]

    return max(spaces.values(), key=mean_precision)


def _whitened(
    pixels: TrainingPixels, frozen: FrozenPart, count: int
) -> tuple[list[FloatArray], float]:
    """Return the whitened features of both splits, and the seconds of fitting them."""
    width = sum(frozen.trunk.channels[-frozen.general_levels :])
    parts = _parts(pixels, slice(-width, None))
    started = time.perf_counter()
    known = pixels.train.labels < count
    labels = torch.from_numpy(np.array(pixels.train.labels[known]))
    mean, projection = (one.numpy() for one in whiten(torch.from_numpy(parts[0][known]), labels))
    placed = [normalise_sub_vectors((rows - mean) @ projection, 1) for rows in parts]
    return placed, time.perf_counter() - started


def _learn(pixels: TrainingPixels, config: RunConfig, count: int, *, device: torch.device) -> Space:
    """Learn a head of one code length from training images of the first `count` classes."""
    config = override(config, [f"training.evaluate_every={config.training.epochs}"])
    started = time.perf_counter()
    whole = Dataset("compared", train=pixels.train, test=pixels.test)
    kept = whole
    if count < len(whole.class_names):
        kept = hold_out_classes(whole, 1 - count / len(whole.class_names)).learned

    def features(frozen: FrozenPart) -> TrainingPixels:
        train, test = (np.flatnonzero(part.labels < count) for part in (pixels.train, pixels.test))
        return select_features(pixels, config, frozen, train=train, test=test, classes=count)

    trainer = Trainer(kept, config, device=device, reporter=Reporter(), features=features)
    for _ in run_epochs(trainer, evaluate="early"):
        pass
    network = trainer.evaluated_network
    minutes = (time.perf_counter() - started) / 60
    return Space(
        name=f"learned embedding of the {config.quantizer.bits // 8}-byte model",
        gallery=pixels.embed_train(network),
        queries=pixels.embed_test(network),
        labels=LEARNED,
        minutes=minutes,
        codebooks=network.export(),
        norm=network.query_norm,
    )


def other_species(source: str) -> str:
    """Return the source of as many drawn birds of other species."""
    return re.sub(r"seed=(\d+)", lambda seed: f"seed={int(seed[1]) + 1}", source)


def drawn_trunk(
    dataset: Dataset,
    folder: Path,
    *,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> RunConfig:
    """Learn a trunk on other drawn species, write it, and return the config of its heads."""
    reporter = reporter or Reporter()
    side = int(re.findall(r"size=(\d+)", dataset.source)[0])
    drawn = (*drawn_settings(side), f"training.epochs={DRAWN_EPOCHS}")
    every = f"training.evaluate_every={DRAWN_EPOCHS}"
    config = resolve_config(settings=(*drawn, every, *settings))
    others = open_dataset(other_species(dataset.source))
    reporter.message("learning a trunk on other drawn species")
    trainer = build_trainer(others, config, device=resolve_device("auto"), reporter=reporter)
    for _ in run_epochs(trainer, evaluate="early"):
        pass
    file = folder / "trunk.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(file, trainer.evaluated_network.backbone.pyramid.state_dict(), {})
    heads = (*drawn_settings(side), "training.trainable=head", f"model.weights={file.absolute()}")
    return resolve_config(settings=(*heads, *settings))
