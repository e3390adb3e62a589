"""One cell in, its record out: train, or fit to stored features, and measure retrieval.

Every cell is evaluated alike: test images are the queries, training images the gallery, ties in
random order, after the last epoch. torch is imported when a cell is run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from phpq._version import __version__
from phpq.codes import CodeArray, Codebooks, normalise_sub_vectors
from phpq.config import DataConfig
from phpq.data import Dataset, Splits, decode_all, learned_part, open_dataset, unseen_split
from phpq.data.images import spread
from phpq.evaluation import LabelledEmbeddings, evaluate_codes, evaluate_float
from phpq.machine import processor
from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell, Subject
from phpq.reproduce.store import DONE, Arrays, KeptCodes, Record, Store, record_head
from phpq.reproduce.unseen import measure_unseen

if TYPE_CHECKING:
    from phpq.training.loop import Trainer
    from phpq.training.pixels import TrainingPixels

CUTOFFS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
# The decoded images of the last cell, on the device: the next one most likely needs the same.
_PIXELS: dict[tuple[str, str, DataConfig], TrainingPixels] = {}
_SPLITS = ("train", "test", "new")
KEPT_QUERIES = 1000  # most queries whose embeddings are stored, for timing and pictures


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all cells share."""

    store: Store  # where results go
    subject: Subject
    device: str  # "auto", "cpu", "cuda" ...
    cache: Path  # folder of decoded pixels
    home: Path | None = None  # where downloads are kept; None is the default
    commit: str = ""  # of the code
    processes: int = 1  # cells that run at once, for the record
    compiled: bool = False  # whether backbones are compiled, unless the config decides

    def open(self) -> Dataset:
        """Open the data set, once per process."""
        return _open(self.subject.source, home=self.home)


_open = lru_cache(maxsize=1)(open_dataset)


def decode_once(cells: Sequence[Cell], context: WorkerContext) -> None:
    """Decode the data set into the cache, once for each `DataConfig` of what learns from pixels."""
    learned = [cell.config for cell in cells if cell.config.training.trainable == "all"]
    for data in {config.data for config in learned}:
        dataset = learned_part(context.open(), data)
        new = unseen_split(context.open(), data) if data.holdout_classes else ()
        for images in (dataset.train, dataset.test, *new):
            if images.path(0) is not None:  # drawn images are not cached
                decode_all(images, data, cache=context.cache)


class _Clock(dict[str, float]):
    """Seconds of each part of a cell."""

    def __init__(self) -> None:
        super().__init__(loading=0.0, training=0.0, evaluation=0.0)
        self.started = self.last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Record the time since the last lap, or since the start, for a part."""
        before, self.last = self.last, time.perf_counter()
        self[part] = round(self.last - before, 2)


def run_cell(cell: Cell, context: WorkerContext) -> Record:
    """Run one cell, whose start must be finished, and write its arrays; returns its record."""
    started, clock = datetime.now(UTC), _Clock()
    kinds = {"training": _train, "features": _extract, "shallow": _fit, "backbone": _fine_tune}
    measured = kinds[cell.kind](cell, context, clock)
    return {
        **record_head(cell, DONE, context.subject.weights),
        "features": cell.config.method.features if cell.kind != "training" else None,
        "dataset": context.subject.facts(),
        **measured,
        "seconds": {**clock, "all": round(time.perf_counter() - clock.started, 2)},
        "hardware": hardware(context.device),
        "processes_at_once": context.processes,
        "compiled": is_compiled(cell, context),
        "commit": context.commit,
        "phpq_version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _train(cell: Cell, context: WorkerContext, clock: _Clock) -> Record:
    """Train a method, from a shared backbone if it has one, and measure it."""
    trainer, epochs = _trainer(cell, context, clock), cell.config.training.epochs
    before = epochs - trainer.config.training.epochs  # of the classifier
    facts, rows = _learn(trainer, clock, evaluate="early", before=before)
    network, learned = trainer.evaluated_network, trainer.network.learned_codes()
    arrays = _embed(trainer, context, network)
    measured = _measure(cell, context, network, arrays, learned)
    if "new" in arrays:
        general = (
            _embed_general(cell, trainer, context) if cell.config.method.name == "phpq" else None
        )
        measured["unseen"] = measure_unseen(cell.config, network, arrays, general=general)
    rows.append({"epoch": epochs} | measured)
    clock.lap("evaluation")
    by_epoch = {str(row["epoch"]): row["map"] for row in rows if "map" in row}
    by_learned = {str(row["epoch"]): row["map_learned"] for row in rows if "map_learned" in row}
    if "map_learned" in measured:
        measured |= {"learned_by_epoch": by_learned, "best_map_learned": max(by_learned.values())}
    return {"epochs": epochs, **measured, **_best(by_epoch), **facts}


def _fine_tune(cell: Cell, context: WorkerContext, clock: _Clock) -> Record:
    """Train the classifier from whose backbone several methods start."""
    from phpq.model.weights import write_safetensors
    from phpq.training import learn_backbone

    trainer, training = _trainer(cell, context, clock), cell.config.training
    path = context.store.arrays_path(cell.key, "backbone")
    write_safetensors(path, learn_backbone(trainer), {"format": "phpq backbone"})
    clock.lap("training")
    images = trainer.steps * training.batch_size * training.epochs
    speed = round(images / max(clock["training"], 0.01), 1)
    return {"epochs": training.epochs, "images_per_second": speed}


def _extract(cell: Cell, context: WorkerContext, clock: _Clock) -> Record:
    """Train the classifier, unless features are ImageNet's, and store those of both splits."""
    trainer = _trainer(cell, context, clock)
    learns = trainer.network.learns
    facts = _learn(trainer, clock, evaluate="none")[0] if learns else {}
    method: Any = trainer.evaluated_network
    describer = _embedder(method, method.describe_features, method.feature_dim)
    arrays = _embed(trainer, context, describer)
    arrays |= {split: arrays[split].astype(np.float16) for split in _SPLITS if split in arrays}
    queries, gallery = _labelled(arrays, "test"), _labelled(arrays, "train")
    scores = evaluate_float(queries, gallery, sub_vectors=1)
    context.store.write_arrays(cell, arrays)
    clock.lap("evaluation")
    return {
        "epochs": cell.config.training.epochs if learns else 0,
        "map": scores.map_percent,  # of cosine search over the features themselves
        "feature_dim": arrays["train"].shape[1],
        **facts,
    }


def _fit(cell: Cell, context: WorkerContext, clock: _Clock) -> Record:
    """Fit a shallow method to stored features, without images."""
    import torch

    from phpq.model.method import build_method

    arrays = context.store.read_arrays(cell.start, "features")
    torch.manual_seed(cell.seed)
    method: Any = build_method(cell.config, context.subject.classes, load_weights=False).eval()
    features = {
        split: torch.from_numpy(arrays[split].astype(np.float32))
        for split in _SPLITS
        if split in arrays
    }
    labels = torch.from_numpy(arrays["train_labels"])
    method.fit_features(features["train"], seed=cell.seed, labels=labels)
    with torch.no_grad():
        arrays |= {name: method.encode_features(rows).numpy() for name, rows in features.items()}
    clock.lap("training")
    measured = _measure(cell, context, method, arrays)
    if "new" in arrays:
        plain = {name: rows.numpy() for name, rows in features.items()}
        measured["unseen"] = measure_unseen(cell.config, method, arrays, features=plain)
    clock.lap("evaluation")
    epochs = 0 if cell.config.method.features == "imagenet" else cell.config.training.epochs
    best = _best({str(epochs): measured["map"]})  # fitted once, after the last epoch
    return {"epochs": epochs, **measured, **best, "features_key": cell.start}


def _best(by_epoch: dict[str, float]) -> Record:
    best = max(by_epoch, key=lambda epoch: by_epoch[epoch])
    return {"best_map": by_epoch[best], "best_epoch": int(best), "by_epoch": by_epoch}


def _trainer(cell: Cell, context: WorkerContext, clock: _Clock) -> Trainer:
    from phpq.model.retrieval import resolve_device
    from phpq.model.weights import read_safetensors
    from phpq.training import Reporter, Trainer, start_from_head

    backbone = None
    if cell.start:
        backbone, _ = read_safetensors(context.store.arrays_path(cell.start, "backbone"))
    shared = context.subject.source, context.device, cell.config.data
    config, compiled = remaining_config(cell.config), is_compiled(cell, context)
    if compiled:
        config = replace(config, training=replace(config.training, accelerate="full"))
    device = resolve_device(context.device)
    make = partial(Trainer, context.open(), device=device, reporter=Reporter())
    trainer = make(config, cache=context.cache, pixels=_PIXELS.get(shared), backbone=backbone)
    if config.training.trainable == "last" and trainer.network.learns:
        start_from_head(trainer, make)
    if compiled:
        trainer.compile_evaluation()
    _PIXELS.clear()
    _PIXELS[shared] = trainer.pixels
    clock.lap("loading")
    return trainer


def is_compiled(cell: Cell, context: WorkerContext) -> bool:
    """Tell whether a cell's backbone is compiled: by its config, or else by the context."""
    wanted = cell.config.training.accelerate
    if cell.kind == "shallow" or not context.device.startswith("cuda"):
        return False
    return wanted == "full" or (wanted == "auto" and context.compiled)


def _learn(
    trainer: Trainer, clock: _Clock, *, evaluate: Literal["early", "none"], before: int = 0
) -> tuple[Record, list[Record]]:
    """Run all epochs; returns the last losses and images/s, and rows without the final MAP."""
    from phpq.training import run_epochs

    rows, seconds = list[Record](), list[float]()
    for row in run_epochs(trainer, before=before, evaluate=evaluate):
        seconds.append(row["seconds"] + trainer.prepare_seconds)
        rows.append(row)
    clock.lap("training")
    clock["training"] = round(sum(seconds), 2)  # without the evaluations in between
    images = trainer.steps * trainer.config.training.batch_size
    steady = seconds[1:] or seconds  # the first epoch warms up
    facts = {
        "losses": {name: rows[-1][name] for name in ("loss", *trainer.network.terms)},
        "images_per_second": round(images * len(steady) / sum(steady), 1),
    }
    return facts, rows


def _embed(
    trainer: Trainer, context: WorkerContext, network: Any, *, mirrored: bool = False
) -> Arrays:
    """Embed all readable images, with their labels and their positions in their splits.

    `mirrored` takes features of the mirror images, if the trainer learns from features.

    Returns:
        "train" (N, D), "train_labels" (N,), "train_rows" (N,), and the same of "test". If classes
        were held out, "new" (n, D) and "new_labels" (n,) of their images, and "new_queries" (n,)
        bool, which of these are queries.
    """
    data, pixels = trainer.config.data, trainer.pixels
    dataset = learned_part(context.open(), data)
    if mirrored:
        pixels = _load(trainer, context, dataset, mirrored=True)
    arrays: Arrays = {"train": pixels.embed_train(network), "test": pixels.embed_test(network)}
    for name in ("train", "test"):
        known = {image: row for row, image in enumerate(getattr(dataset, name).ids)}
        readable = getattr(pixels, name)
        arrays[f"{name}_labels"] = readable.labels
        arrays[f"{name}_rows"] = np.array([known[image] for image in readable.ids], dtype=np.int64)
    if not data.holdout_classes:
        return arrays
    new = _load(trainer, context, unseen_split(context.open(), data), mirrored=mirrored)
    return arrays | {
        "new": np.concatenate([new.embed_train(network), new.embed_test(network)]),
        "new_labels": np.concatenate([new.train.labels, new.test.labels]),
        "new_queries": np.repeat([False, True], [len(new.train), len(new.test)]),
    }


def _load(
    trainer: Trainer, context: WorkerContext, images: Dataset | Splits, *, mirrored: bool
) -> TrainingPixels:
    """Read images as the trainer reads those that it learns from: as pixels, or as features."""
    from phpq.training.features import load_features
    from phpq.training.pixels import load_pixels

    config, reporter, cache = trainer.config, trainer.reporter, context.cache
    if trainer.frozen is None:
        return load_pixels(images, config, device=trainer.device, reporter=reporter, cache=cache)
    frozen = replace(trainer.frozen, mirrored=mirrored)
    return load_features(images, config, frozen, reporter=reporter, cache=cache)


def _embed_general(cell: Cell, trainer: Trainer, context: WorkerContext) -> Arrays:
    """Fit the general embedding of the trained network, and embed as `_embed` does."""
    from phpq.model.general import fit_general

    general = fit_general(trainer.evaluated_network, cell.config, trainer.training_set)
    if trainer.frozen is None:
        embedder = _embedder(general, lambda images, **_: general(images), general.dim)
        return _embed(trainer, context, embedder)
    embedder = _embedder(general, lambda rows, **_: general.one_view(rows), general.dim)
    views = [_embed(trainer, context, embedder, mirrored=mirrored) for mirrored in (False, True)]
    both = {name: views[0][name] + views[1][name] for name in _SPLITS if name in views[0]}
    return views[0] | {name: normalise_sub_vectors(rows, 1) for name, rows in both.items()}


def _embedder(module: Any, embed: Callable[..., Any], dim: int) -> Any:
    """Return a stand-in for a method, which embeds by `embed` with a module's weights."""
    return SimpleNamespace(
        embed=embed, embedding_dim=dim, eval=module.eval, parameters=module.parameters
    )


def _labelled(arrays: Arrays, name: str) -> LabelledEmbeddings:
    return LabelledEmbeddings(arrays[name].astype(np.float32, copy=False), arrays[f"{name}_labels"])


def _measure(
    cell: Cell,
    context: WorkerContext,
    method: Any,
    arrays: Arrays,  # as of `_embed`
    learned: CodeArray | None = None,  # (N, M) of the gallery, from labels
) -> Record:
    """Return MAP, P@N and the use of the codebooks; store codes if the cell keeps them."""
    books: Codebooks = method.export()
    queries, gallery = _labelled(arrays, "test"), _labelled(arrays, "train")
    codes = books.encode(gallery.embeddings)

    def scores(codes: CodeArray) -> Record:
        return evaluate_codes(
            queries,
            codes,
            gallery_labels=gallery.labels,
            codebooks=books,
            query_norm=method.query_norm,
            cutoffs=[n for n in CUTOFFS if n <= len(codes)],
        ).to_dict()

    plain = scores(codes)
    names = ("map", "map_range", "precision_at", "health", "gallery", "queries")
    measured = {name: plain[name] for name in names}
    if learned is not None:
        other = scores(learned)
        measured["map_learned"] = other["map"]
        measured["map_learned_range"] = other["map_range"]
        measured["precision_at_learned"] = other["precision_at"]
    if books.unit:  # float vectors say more than their codes; signs do not
        exact = evaluate_float(queries, gallery, sub_vectors=books.num_codebooks, cutoffs=(1,))
        measured["map_float"] = exact.map_percent
        measured["p1_float"] = 100 * exact.precision_at[1]
    if cell.keep:
        some = spread(len(queries), KEPT_QUERIES)
        kept = KeptCodes(
            codebooks=books,
            codes=codes if learned is None else learned,
            gallery_rows=arrays["train_rows"],
            gallery_labels=gallery.labels,
            queries=queries.embeddings[some],
            query_rows=arrays["test_rows"][some],
            query_labels=queries.labels[some],
            query_norm=method.query_norm,
        )
        context.store.write_codes(cell, kept)
    return measured


@lru_cache(maxsize=1)
def hardware(device: str) -> dict[str, Any]:
    """Describe the machine."""
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "cpu": processor(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
