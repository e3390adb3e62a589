"""One cell in, its record out: train, or fit to stored features, and measure retrieval.

Every cell goes through the same evaluation: all test images ask, all training images answer, ties
in random order, the last epoch counts. torch is imported when a cell is run.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phpq._version import __version__
from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm
from phpq.data import LabelledImages, hold_out
from phpq.evaluation import LabelledEmbeddings, RetrievalScores, evaluate_codes, evaluate_float
from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell, recorded_config
from phpq.reproduce.store import DONE, FORMAT, Arrays
from phpq.reproduce.workplace import Workplace, hardware

if TYPE_CHECKING:
    from phpq.training.loop import Trainer
    from phpq.training.pixels import TrainingPixels

CUTOFFS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
# The decoded images of the last cell, on the device: the next one most likely wants the same.
_PIXELS: dict[str, TrainingPixels] = {}
KEPT_QUERIES = 1000  # embeddings of as many queries are stored for timing and pictures


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """What a finished method is searched with."""

    queries: LabelledEmbeddings
    query_rows: IntArray  # (Q,) places in the test split
    gallery: LabelledEmbeddings
    gallery_rows: IntArray  # (N,) places in the training split
    codebooks: Codebooks
    query_norm: QueryNorm
    learned: NDArray[np.uint8] | None = None  # (N, M) codes learned from labels


def run_cell(cell: Cell, place: Workplace) -> dict[str, Any]:
    """Run one cell and write its files.

    Args:
        cell: What to run; the features that it reads must be there.
        place: Data set, device and folder.

    Returns:
        The record, as `cells/<key>.json` holds it.
    """
    started = datetime.now(UTC)
    begun = time.perf_counter()
    kinds = {"training": _train, "features": _extract, "shallow": _fit, "backbone": _fine_tune}
    run = kinds[cell.kind]
    measured = run(cell, place)
    record = {
        "format": FORMAT,
        "key": cell.key,
        "status": DONE,
        "kind": cell.kind,
        "method": cell.config.method.name,
        "features": cell.config.method.features if cell.kind != "training" else None,
        "bits": cell.bits,
        "seed": cell.seed,
        "dataset": place.facts,
        **measured,
    }
    record["seconds"]["all"] = round(time.perf_counter() - begun, 2)
    record |= {
        "config": recorded_config(cell.config, place.weights),
        "hardware": hardware(place.device),
        "processes_at_once": place.processes,
        "compiled": is_compiled(cell, place),
        "commit": place.commit,
        "phpq_version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    place.store.write_record(record)
    return record


def compile_for(cell: Cell, place: Workplace) -> None:
    """Fill the compiler's cache on disk with the code of a cell, whatever its weights are."""
    trainer, _ = _trainer(replace(cell, features=""), replace(place, compiled=True))
    trainer.rehearse()


def _train(cell: Cell, place: Workplace) -> dict[str, Any]:
    trainer, seconds = _trainer(cell, place)
    by_epoch: dict[str, float] = {}
    before = cell.config.training.epochs - trainer.config.training.epochs  # of the classifier
    facts, by_learned = _learn(trainer, by_epoch, before=before)
    begun = time.perf_counter()
    coded = _coded(trainer, place)
    measured = _measure(cell, coded, place)
    by_epoch[str(cell.config.training.epochs)] = measured["map"]
    if "map_learned" in measured:
        by_learned[str(cell.config.training.epochs)] = measured["map_learned"]
        measured["learned_by_epoch"] = by_learned
        measured["best_map_learned"] = max(by_learned.values())
    seconds |= {
        "training": facts.pop("seconds"),
        "evaluation": round(time.perf_counter() - begun, 2),
    }
    best = max(by_epoch, key=lambda epoch: by_epoch[epoch])
    return {
        "epochs": cell.config.training.epochs,
        **measured,
        "best_map": by_epoch[best],
        "best_epoch": int(best),
        "by_epoch": by_epoch,
        **facts,
        "seconds": seconds,
    }


def _fine_tune(cell: Cell, place: Workplace) -> dict[str, Any]:
    """Train the classifier from whose backbone several methods go on."""
    from phpq.model.weights import write_safetensors
    from phpq.training import learn_backbone

    trainer, seconds = _trainer(cell, place)
    begun = time.perf_counter()
    state = learn_backbone(trainer)
    write_safetensors(place.store.backbone_path(cell.key), state, {"format": "phpq backbone"})
    taken = time.perf_counter() - begun
    images = trainer.steps * cell.config.training.batch_size * cell.config.training.epochs
    return {
        "epochs": cell.config.training.epochs,
        "images_per_second": round(images / taken, 1),
        "seconds": seconds | {"training": round(taken, 2), "evaluation": 0.0},
    }


def _extract(cell: Cell, place: Workplace) -> dict[str, Any]:
    """Train the classifier, if that is asked for, and store features of both splits."""
    trainer, seconds = _trainer(cell, place)
    learns = trainer.network.learns
    facts: dict[str, Any] = {"seconds": 0.0}
    if learns:
        facts, _ = _learn(trainer, {}, evaluate=False)
    begun = time.perf_counter()
    describer: Any = _Describer(trainer.evaluated_network)
    pixels = trainer.pixels
    rows = _rows(trainer, place)
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
    seconds |= {
        "training": facts.pop("seconds"),
        "evaluation": round(time.perf_counter() - begun, 2),
    }
    return {
        "epochs": cell.config.training.epochs if learns else 0,
        "map": scores.map_percent,  # of cosine search over the features themselves
        "feature_dim": gallery.embeddings.shape[1],
        **facts,
        "seconds": seconds,
    }


def _fit(cell: Cell, place: Workplace) -> dict[str, Any]:
    """Fit a shallow method to stored features; there are no images in it."""
    import torch

    from phpq.model.method import build_method

    begun = time.perf_counter()
    stored = place.store.read_arrays(replace(cell, kind="features", key=cell.features))
    torch.manual_seed(cell.seed)
    method: Any = build_method(cell.config, int(place.facts["classes"]), load_weights=False).eval()
    method.fit_features(torch.from_numpy(stored["train"].astype(np.float32)), seed=cell.seed)

    def embed(features: NDArray[np.float16]) -> FloatArray:
        with torch.no_grad():
            embedded = method.encode_features(torch.from_numpy(features.astype(np.float32)))
        result: FloatArray = embedded.numpy()
        return result

    coded = Coded(
        queries=LabelledEmbeddings(embed(stored["test"]), stored["test_labels"]),
        query_rows=stored["test_rows"],
        gallery=LabelledEmbeddings(embed(stored["train"]), stored["train_labels"]),
        gallery_rows=stored["train_rows"],
        codebooks=method.export(),
        query_norm=method.query_norm,
    )
    fitted = time.perf_counter()
    measured = _measure(cell, coded, place)
    epochs = cell.config.training.epochs if cell.config.method.features == "finetuned" else 0
    return {
        "epochs": epochs,
        **measured,
        "best_map": measured["map"],  # fitted once, after the last epoch
        "best_epoch": epochs,
        "by_epoch": {str(epochs): measured["map"]},
        "features_key": cell.features,
        "seconds": {
            "loading": 0.0,
            "training": round(fitted - begun, 2),
            "evaluation": round(time.perf_counter() - fitted, 2),
        },
    }


def _trainer(cell: Cell, place: Workplace) -> tuple[Trainer, dict[str, float]]:
    from phpq.model.retrieval import resolve_device
    from phpq.model.weights import read_safetensors
    from phpq.training import SilentReporter, Trainer

    begun = time.perf_counter()
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
        reporter=SilentReporter(),
        cache=place.cache,
        pixels=_PIXELS.get(shared),
        backbone=backbone,
    )
    if compiled:
        trainer.compile_evaluation()  # from the cache on disk, but for who fills that
    _PIXELS.clear()
    _PIXELS[shared] = trainer.pixels
    return trainer, {"loading": round(time.perf_counter() - begun, 2)}


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
    training, learned, seconds = trainer.config.training, dict[str, float](), list[float]()
    losses: dict[str, float] = {}
    for epoch in range(training.epochs):
        begun = time.perf_counter()
        trainer.prepare_epoch(epoch)
        losses = trainer.train_epoch(epoch).losses
        seconds.append(time.perf_counter() - begun)
        last = epoch + 1 == training.epochs
        early = (epoch + 1) % training.evaluate_every == 0 and not trainer.network.fitted_last
        if evaluate and early and not last:
            row = trainer.evaluate()
            by_epoch[str(before + epoch + 1)] = row["map"]
            if "map_learned" in row:
                learned[str(before + epoch + 1)] = row["map_learned"]
    if evaluate:
        trainer.complete()
    images = trainer.steps * training.batch_size
    steady = seconds[1:] or seconds  # the first epoch looks for algorithms and captures a graph
    facts = {
        "losses": losses,
        "images_per_second": round(images * len(steady) / sum(steady), 1),
        "seconds": round(sum(seconds), 2),
    }
    return facts, learned


def _coded(trainer: Trainer, place: Workplace) -> Coded:
    network, pixels = trainer.evaluated_network, trainer.pixels
    gallery_rows, query_rows = _rows(trainer, place)
    return Coded(
        queries=LabelledEmbeddings(pixels.embed_test(network), pixels.test.labels),
        query_rows=query_rows,
        gallery=LabelledEmbeddings(pixels.embed_train(network), pixels.train.labels),
        gallery_rows=gallery_rows,
        codebooks=network.export(),
        query_norm=network.query_norm,
        learned=trainer.network.learned_codes(),
    )


def _measure(cell: Cell, coded: Coded, place: Workplace) -> dict[str, Any]:
    """Return MAP, P@N and the health of the codes; store codes if they are to be kept."""
    codes = coded.codebooks.encode(coded.gallery.embeddings)
    cutoffs = [n for n in CUTOFFS if n <= len(codes)]

    def scores(gallery: NDArray[np.uint8]) -> RetrievalScores:
        return evaluate_codes(
            coded.queries,
            gallery,
            gallery_labels=coded.gallery.labels,
            codebooks=coded.codebooks,
            query_norm=coded.query_norm,
            cutoffs=cutoffs,
        )

    plain = scores(codes)
    facts = plain.to_dict()
    measured: dict[str, Any] = {
        "map": plain.map_percent,
        "map_range": list(plain.map_range_percent),
        "precision_at": facts["precision_at"],
        "health": facts["health"],
        "gallery": plain.gallery,
        "queries": plain.queries,
    }
    if coded.learned is not None:
        learned = scores(coded.learned)
        measured["map_learned"] = learned.map_percent
        measured["map_learned_range"] = list(learned.map_range_percent)
        measured["precision_at_learned"] = learned.to_dict()["precision_at"]
    if cell.keep:
        if coded.codebooks.unit:  # float vectors say more than their codes; signs do not
            exact = evaluate_float(
                coded.queries, coded.gallery, sub_vectors=coded.codebooks.num_codebooks
            )
            measured["map_float"] = exact.map_percent
        place.store.write_arrays(cell, _kept(coded, codes))
    return measured


def _kept(coded: Coded, codes: NDArray[np.uint8]) -> Arrays:
    total = len(coded.queries)
    chosen = np.unique(np.linspace(0, total - 1, min(KEPT_QUERIES, total)).round().astype(int))
    return {
        "gallery_codes": codes if coded.learned is None else coded.learned,
        "gallery_labels": coded.gallery.labels.astype(np.int32),
        "gallery_rows": coded.gallery_rows.astype(np.int32),
        "codebooks": coded.codebooks.codewords.astype(np.float16),
        "unit": np.array(coded.codebooks.unit),
        "query_norm": np.array(coded.query_norm),
        "queries": coded.queries.embeddings[chosen].astype(np.float16),
        "query_labels": coded.queries.labels[chosen].astype(np.int32),
        "query_rows": coded.query_rows[chosen].astype(np.int32),
    }


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


class _Describer:
    """Shows a shallow method's features to what embeds images."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.embedding_dim = method.feature_dim

    def eval(self) -> None:
        self.method.eval()

    def parameters(self) -> Any:
        return self.method.parameters()

    def embed(self, images: Any, *, mirrored: bool = False) -> Any:
        return self.method.describe_features(images, mirrored=mirrored)
