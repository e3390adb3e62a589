"""One cell in, its record out: train, or fit to stored features, and measure retrieval.

Every cell goes through the same evaluation: all test images ask, all training images answer, ties
in random order, the last epoch counts. torch is imported when a cell is run.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phpq._version import __version__
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray
from phpq.data import LabelledImages, hold_out
from phpq.evaluation import LabelledEmbeddings, RetrievalScores, evaluate_codes, evaluate_float
from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell, recorded_config
from phpq.reproduce.store import DONE, Arrays, KeptCodes, Record, record_head
from phpq.reproduce.workplace import Workplace, hardware

if TYPE_CHECKING:
    from phpq.training.loop import Trainer
    from phpq.training.pixels import TrainingPixels

CUTOFFS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
# The decoded images of the last cell, on the device: the next one most likely wants the same.
_PIXELS: dict[str, TrainingPixels] = {}
KEPT_QUERIES = 1000  # embeddings of as many queries are stored for timing and pictures


@dataclass(slots=True)
class _Clock:
    """Seconds of each part of a cell, in turn."""

    begun: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, part: str) -> None:
        """Count the time since the last note, or since the start, to a part."""
        now = time.perf_counter()
        self.seconds[part] = round(now - self.begun, 2)
        self.begun = now


def run_cell(cell: Cell, place: Workplace) -> Record:
    """Run one cell, whose start must be there, and write its arrays; returns its record."""
    started, whole, clock = datetime.now(UTC), _Clock(), _Clock()
    kinds = {"training": _train, "features": _extract, "shallow": _fit, "backbone": _fine_tune}
    measured = kinds[cell.kind](cell, place, clock)
    whole.note("all")
    return {
        **record_head(cell, DONE),
        "features": cell.config.method.features if cell.kind != "training" else None,
        "dataset": place.facts,
        **measured,
        "seconds": clock.seconds | whole.seconds,
        "config": recorded_config(cell.config, place.weights),
        "hardware": hardware(place.device),
        "processes_at_once": place.processes,
        "compiled": is_compiled(cell, place),
        "commit": place.commit,
        "phpq_version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _train(cell: Cell, place: Workplace, clock: _Clock) -> Record:
    trainer = _trainer(cell, place, clock)
    by_epoch: dict[str, float] = {}
    epochs = cell.config.training.epochs
    before = epochs - trainer.config.training.epochs  # of the classifier
    facts, by_learned = _learn(trainer, by_epoch, before=before)
    clock.note("training")
    network, pixels = trainer.evaluated_network, trainer.pixels
    measured = _measure(
        cell,
        place,
        network,
        queries=LabelledEmbeddings(pixels.embed_test(network), pixels.test.labels),
        gallery=LabelledEmbeddings(pixels.embed_train(network), pixels.train.labels),
        rows=_rows(trainer, place),
        learned=trainer.network.learned_codes(),
    )
    by_epoch[str(epochs)] = measured["map"]
    if "map_learned" in measured:
        by_learned[str(epochs)] = measured["map_learned"]
        measured["learned_by_epoch"] = by_learned
        measured["best_map_learned"] = max(by_learned.values())
    clock.note("evaluation")
    clock.seconds["training"] = facts.pop("seconds")  # without the evaluations in between
    best = max(by_epoch, key=lambda epoch: by_epoch[epoch])
    return {
        "epochs": epochs,
        **measured,
        "best_map": by_epoch[best],
        "best_epoch": int(best),
        "by_epoch": by_epoch,
        **facts,
    }


def _fine_tune(cell: Cell, place: Workplace, clock: _Clock) -> Record:
    """Train the classifier from whose backbone several methods go on."""
    from phpq.model.weights import write_safetensors
    from phpq.training import learn_backbone

    trainer = _trainer(cell, place, clock)
    state = learn_backbone(trainer)
    write_safetensors(place.store.backbone_path(cell.key), state, {"format": "phpq backbone"})
    clock.note("training")
    clock.seconds["evaluation"] = 0.0
    training = cell.config.training
    images = trainer.steps * training.batch_size * training.epochs
    taken = max(clock.seconds["training"], 0.01)
    return {"epochs": training.epochs, "images_per_second": round(images / taken, 1)}


def _extract(cell: Cell, place: Workplace, clock: _Clock) -> Record:
    """Train the classifier, if that is asked for, and store features of both splits."""
    trainer = _trainer(cell, place, clock)
    learns = trainer.network.learns
    facts = _learn(trainer, {}, evaluate=False)[0] if learns else {"seconds": 0.0}
    clock.note("training")
    method: Any = trainer.evaluated_network
    describer: Any = SimpleNamespace(  # a method whose embeddings are its features
        embed=method.describe_features,
        embedding_dim=method.feature_dim,
        eval=method.eval,
        parameters=method.parameters,
    )
    pixels, rows = trainer.pixels, _rows(trainer, place)
    arrays: Arrays = {
        "train": pixels.embed_train(describer).astype(np.float16),
        "train_labels": pixels.train.labels,
        "train_rows": rows[0],
        "test": pixels.embed_test(describer).astype(np.float16),
        "test_labels": pixels.test.labels,
        "test_rows": rows[1],
    }
    gallery = LabelledEmbeddings(arrays["train"].astype(np.float32), pixels.train.labels)
    queries = LabelledEmbeddings(arrays["test"].astype(np.float32), pixels.test.labels)
    scores = evaluate_float(queries, gallery, sub_vectors=1)
    place.store.write_arrays(cell, arrays)
    clock.note("evaluation")
    clock.seconds["training"] = facts.pop("seconds")
    return {
        "epochs": cell.config.training.epochs if learns else 0,
        "map": scores.map_percent,  # of cosine search over the features themselves
        "feature_dim": gallery.embeddings.shape[1],
        **facts,
    }


def _fit(cell: Cell, place: Workplace, clock: _Clock) -> Record:
    """Fit a shallow method to stored features; there are no images in it."""
    import torch

    from phpq.model.method import build_method

    clock.seconds["loading"] = 0.0
    stored = place.store.read_arrays(
        place.store.arrays_path(replace(cell, kind="features", key=cell.features))
    )
    torch.manual_seed(cell.seed)
    method: Any = build_method(cell.config, int(place.facts["classes"]), load_weights=False).eval()
    method.fit_features(torch.from_numpy(stored["train"].astype(np.float32)), seed=cell.seed)

    def embed(features: NDArray[np.float16]) -> FloatArray:
        with torch.no_grad():
            embedded = method.encode_features(torch.from_numpy(features.astype(np.float32)))
        result: FloatArray = embedded.numpy()
        return result

    queries = LabelledEmbeddings(embed(stored["test"]), stored["test_labels"])
    gallery = LabelledEmbeddings(embed(stored["train"]), stored["train_labels"])
    clock.note("training")
    rows = stored["train_rows"], stored["test_rows"]
    measured = _measure(cell, place, method, queries=queries, gallery=gallery, rows=rows)
    clock.note("evaluation")
    epochs = cell.config.training.epochs if cell.config.method.features == "finetuned" else 0
    return {
        "epochs": epochs,
        **measured,
        "best_map": measured["map"],  # fitted once, after the last epoch
        "best_epoch": epochs,
        "by_epoch": {str(epochs): measured["map"]},
        "features_key": cell.features,
    }


def _trainer(cell: Cell, place: Workplace, clock: _Clock) -> Trainer:
    from phpq.model.retrieval import resolve_device
    from phpq.model.weights import read_safetensors
    from phpq.training import Reporter, Trainer

    backbone = None
    if cell.features:
        backbone, _ = read_safetensors(place.store.backbone_path(cell.features))
    shared = json.dumps([place.source, place.device, asdict(cell.config.data)])
    config = remaining_config(cell.config)
    compiled = is_compiled(cell, place)
    if compiled:
        config = replace(config, training=replace(config.training, accelerate="full"))
    trainer = Trainer(
        place.open(),
        config,
        device=resolve_device(place.device),
        reporter=Reporter(),
        cache=place.cache,
        pixels=_PIXELS.get(shared),
        backbone=backbone,
    )
    if compiled:
        trainer.compile_evaluation()
    _PIXELS.clear()
    _PIXELS[shared] = trainer.pixels
    clock.note("loading")
    return trainer


def is_compiled(cell: Cell, place: Workplace) -> bool:
    """Tell whether a cell's backbone is compiled: as it is asked for, or as the grid has it."""
    wanted = cell.config.training.accelerate
    if cell.kind == "shallow" or not place.device.startswith("cuda"):
        return False
    return wanted == "full" or (wanted == "auto" and place.compiled)


def _learn(
    trainer: Trainer, by_epoch: dict[str, float], *, evaluate: bool = True, before: int = 0
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run all epochs; fills MAP by epoch but for the last, which is measured in full elsewhere.

    Returns:
        Losses of the last epoch, seconds and images/s; and MAP with learned databases by epoch.
    """
    from phpq.training import run_epochs

    learned, seconds = dict[str, float](), list[float]()
    row: dict[str, Any] = {}
    for row in run_epochs(trainer, before=before, evaluate="early" if evaluate else "none"):
        seconds.append(row["seconds"] + trainer.prepare_seconds)
        if "map" in row:
            by_epoch[str(row["epoch"])] = row["map"]
        if "map_learned" in row:
            learned[str(row["epoch"])] = row["map_learned"]
    losses = {name: row[name] for name in ("loss", *trainer.network.terms)}
    images = trainer.steps * trainer.config.training.batch_size
    steady = seconds[1:] or seconds  # the first epoch looks for algorithms and captures a graph
    facts = {
        "losses": losses,
        "images_per_second": round(images * len(steady) / sum(steady), 1),
        "seconds": round(sum(seconds), 2),
    }
    return facts, learned


def _measure(
    cell: Cell,
    place: Workplace,
    method: Any,
    *,
    queries: LabelledEmbeddings,  # Q test images
    gallery: LabelledEmbeddings,  # N training images
    rows: tuple[IntArray, IntArray],  # (N,) and (Q,): places of both in their splits
    learned: CodeArray | None = None,  # (N, M), from labels
) -> Record:
    """Return MAP, P@N and the health of the codes; store codes if they are to be kept."""
    books: Codebooks = method.export()
    codes = books.encode(gallery.embeddings)

    def scores(codes: CodeArray) -> RetrievalScores:
        return evaluate_codes(
            queries,
            codes,
            gallery_labels=gallery.labels,
            codebooks=books,
            query_norm=method.query_norm,
            cutoffs=[n for n in CUTOFFS if n <= len(codes)],
        )

    plain = scores(codes)
    facts = plain.to_dict()
    measured: Record = {
        "map": plain.map_percent,
        "map_range": list(plain.map_range_percent),
        "precision_at": facts["precision_at"],
        "health": facts["health"],
        "gallery": plain.gallery,
        "queries": plain.queries,
    }
    if learned is not None:
        other = scores(learned)
        measured["map_learned"] = other.map_percent
        measured["map_learned_range"] = list(other.map_range_percent)
        measured["precision_at_learned"] = other.to_dict()["precision_at"]
    if cell.keep:
        if books.unit:  # float vectors say more than their codes; signs do not
            exact = evaluate_float(queries, gallery, sub_vectors=books.num_codebooks)
            measured["map_float"] = exact.map_percent
        most = min(KEPT_QUERIES, len(queries))
        some = np.unique(np.linspace(0, len(queries) - 1, most).round().astype(int))
        kept = KeptCodes(
            codebooks=books,
            codes=codes if learned is None else learned,
            gallery_rows=rows[0],
            gallery_labels=gallery.labels,
            queries=queries.embeddings[some],
            query_rows=rows[1][some],
            query_labels=queries.labels[some],
            query_norm=method.query_norm,
        )
        place.store.write_codes(cell, kept)
    return measured


def _rows(trainer: Trainer, place: Workplace) -> tuple[IntArray, IntArray]:
    """Return where the images that could be read stand in the training and the test split."""
    dataset, held = place.open(), trainer.config.data.holdout_per_class
    if held:
        dataset = hold_out(dataset, held, seed=0)

    def places(split: LabelledImages, readable: LabelledImages) -> IntArray:
        known = {name: row for row, name in enumerate(split.ids)}
        return np.array([known[name] for name in readable.ids], dtype=np.int64)

    return (
        places(dataset.train, trainer.pixels.train),
        places(dataset.test, trainer.pixels.test),
    )
