"""What is learned in a comparison itself, over a frozen trunk, in minutes on a processor.

Every image passes the trunk once (`phpq.training.features` keeps what comes out). The rows give the
frozen features, their whitened form, and what heads of several lengths learn from, which never see
a query or a class that is held out. For drawn birds the trunk is learned first, on other species.
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
    fit_seconds,
    images_of,
    plain_config,
)
from phpq.compare.spaces import Images, Space, unit_space
from phpq.config import RunConfig, override, with_bits
from phpq.data import Dataset, SkippedImage, hold_out_classes, open_dataset
from phpq.data.batches import Views
from phpq.data.decode import decode_readable
from phpq.data.images import learned_classes
from phpq.errors import DataError
from phpq.evaluation.kinds import Way, search
from phpq.model.cut import Cut, cut_network
from phpq.model.general import whiten
from phpq.model.method import build_method
from phpq.model.retrieval import resolve_device
from phpq.model.weights import write_safetensors
from phpq.recipes import drawn_settings, resolve_config
from phpq.training import Reporter, Trainer, build_trainer, run_epochs
from phpq.training.features import choose_rows, images_to_pass, load_features
from phpq.training.pixels import TrainingPixels
from phpq.training.progress import Advance

LENGTHS = (64, 32, 16)  # bits, the first one first: minutes may end before the others
HELD_OUT = 0.2  # share of the classes that no head learns, unless said otherwise
DRAWN_EPOCHS = 24  # of a trunk for drawn birds
_LEARNING_SHARE = 0.6  # of the time, after which no further head is begun
_TRIED = 32  # images by which the speed of the trunk is measured


class _Recorder(Reporter):
    """Passes on what a user wants to see, and keeps the images that were left out."""

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
    """Let all images pass the frozen trunk of a config, and learn heads of several lengths.

    The last `share` of the classes is held out; None is `HELD_OUT` where there are enough. The half
    of the `seconds` is for the trunk: where it is too slow for all images, some are drawn. Heads
    that would begin later than is good for the rest of a comparison are left out.
    """
    ends = time.perf_counter() + _LEARNING_SHARE * seconds
    recorder = _Recorder(reporter or Reporter())
    torch.manual_seed(config.training.seed)
    device = resolve_device("auto")
    network = build_method(config, len(dataset.class_names), load_weights=True).to(device)
    cut = cut_network(network, config)
    rate = _rate(dataset, config, cut)
    waiting = images_to_pass(dataset, config, cut, cache)
    dataset, said = fit_seconds(dataset, seconds, rate=rate, waiting=waiting)
    passing = f"{waiting:,} images pass the trunk" if waiting else "the features are there already"
    recorder.message(said or passing)
    notes = [said] if said else []
    pixels = load_features(dataset, config, cut, reporter=recorder, cache=cache)
    count, remark = _learned_count(dataset, share)
    notes += [remark] if remark else []
    images = images_of(
        pixels.train, pixels.test, [label >= count for label in range(len(dataset.class_names))]
    )
    spaces = _pooled(pixels, cut, images)
    general, took = _whitened(pixels, cut, count)
    learned: list[Space] = []
    for bits in LENGTHS:
        if learned and time.perf_counter() > ends:
            notes.append(f"phpq of {bits // 8} bytes: the minutes were over")
            continue
        recorder.message(f"learning codes of {bits} bits")
        learned.append(_learn(pixels, with_bits(config, bits), count, device=device))
    return Embedded(
        images=images,
        frozen=spaces,
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
    """Return how many classes are learned, and what to say if none are held out."""
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


def _rate(dataset: Dataset, config: RunConfig, cut: Cut) -> float:
    """Return the images per second that are decoded and pass the trunk."""
    few = dataset.train.subset(np.arange(min(_TRIED, len(dataset.train))))
    views = Views(config.data)
    seconds = 0.0
    for _ in range(2):  # of which the first finds memory and kernels
        started = time.perf_counter()
        decoded = decode_readable(few, config.data, workers=config.training.workers)
        if len(decoded.pixels):
            cut.stem(views.encode(torch.from_numpy(decoded.pixels).to(cut.device)))
        seconds = time.perf_counter() - started
    return len(few) / seconds


def _parts(pixels: TrainingPixels, columns: slice) -> list[FloatArray]:
    """Return some columns of the rows of both splits, as float32."""
    return [
        np.ascontiguousarray(rows[:][:, columns], np.float32)
        for rows in (pixels.train_pixels, pixels.test_pixels)
    ]


def _pooled(pixels: TrainingPixels, cut: Cut, images: Images) -> Space:
    """Return the pooled features that find held-out gallery images best: two are usual.

    The average of the last level, as most people take it, or generalized means of the last two.
    """
    channels = cut.trunk.channels
    width = sum(channels[-cut.described :])
    ways = {
        "average of its last level": slice(-width - channels[-1], -width),
        "generalized means of its last levels": slice(-width, None),
    }
    spaces = {
        name: unit_space("frozen trunk", *_parts(pixels, columns), labels=NONE)
        for name, columns in ways.items()
    }
    choice = images.choice()
    if choice is None:
        return next(iter(spaces.values()))
    rows, split = choice

    def served(space: Space) -> float:
        way, labels = Way("", space.gallery[rows]), images.gallery[rows]
        asked = split.rows(query=False)
        return search(way, labels, "", gallery=asked, queries=split.rows(query=True)).values["map"]

    return max(spaces.values(), key=served)


def _whitened(pixels: TrainingPixels, cut: Cut, count: int) -> tuple[list[FloatArray], float]:
    """Return the general embedding of both splits, fitted to the learned classes, and seconds."""
    width = sum(cut.trunk.channels[-cut.described :])
    parts = _parts(pixels, slice(-width, None))
    started = time.perf_counter()
    known = pixels.train.labels < count
    labels = torch.from_numpy(np.array(pixels.train.labels[known]))
    mean, projection = (one.numpy() for one in whiten(torch.from_numpy(parts[0][known]), labels))
    placed = [normalise_sub_vectors((rows - mean) @ projection, 1) for rows in parts]
    return placed, time.perf_counter() - started


def _learn(pixels: TrainingPixels, config: RunConfig, count: int, *, device: torch.device) -> Space:
    """Learn a head of one length from the training images of the first `count` classes."""
    config = override(config, [f"training.evaluate_every={config.training.epochs}"])
    started = time.perf_counter()
    whole = Dataset("compared", train=pixels.train, test=pixels.test)
    kept = whole
    if count < len(whole.class_names):
        kept = hold_out_classes(whole, 1 - count / len(whole.class_names)).learned

    def rows(cut: Cut) -> TrainingPixels:
        learned, asking = (
            np.flatnonzero(part.labels < count) for part in (pixels.train, pixels.test)
        )
        return choose_rows(pixels, config, cut, train=learned, test=asking, classes=count)

    trainer = Trainer(kept, config, device=device, reporter=Reporter(), features=rows)
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
    """Return what opens drawn birds of other species, as many and as large."""
    return re.sub(r"seed=(\d+)", lambda seed: f"seed={int(seed[1]) + 1}", source)


def drawn_trunk(
    dataset: Dataset,
    folder: Path,
    *,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> RunConfig:
    """Learn a trunk on other drawn species, write it, and return the config of heads over it."""
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
