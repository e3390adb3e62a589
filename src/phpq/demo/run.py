"""The demo: nothing in; two trained runs, a report and `metrics.json` out, on a CPU in minutes.

    report.html  metrics.json        what was measured
    runs/16  runs/32                 run folders, for `phpq.load`, `phpq search`, `phpq evaluate`
    queries/<species>.png            birds to search with

Two models learn from scratch on drawn birds, one per code length and each in a process of its own.
Each is measured beside exhaustive float search, float queries against soft reconstructions, and a
product quantizer fitted afterwards, on the very same embeddings.
New files are made in a corner of the folder and moved once they are complete: a crash or Ctrl-C
leaves an earlier demo as it was. What is not the demo's own is never touched.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from phpq._version import __version__
from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages, plumage
from phpq.demo.page import build_page, draw_family
from phpq.errors import ConfigError
from phpq.evaluation.coded import FOLDER
from phpq.evaluation.history import epoch_scores, read_rows
from phpq.evaluation.page import REPORT
from phpq.evaluation.run import METRICS, Evaluation, evaluate_model
from phpq.files import is_taken, write_json
from phpq.model import Model, load
from phpq.recipes import drawn_settings, resolve_config
from phpq.report.blocks import write_report
from phpq.training import Reporter, train_run

BITS = (16, 32)  # code lengths, each learned by a run of its own
MADE_BY = "phpq demo"
UNFINISHED = ".unfinished"  # inside the folder, so that moving what is complete is only a rename
RUNS, QUERIES = "runs", "queries"
# The network is too small to share: threads that wait for each other on busy cores take longer than
# one, but processes that share nothing do not wait. And so the result does not depend on the number
# of cores.
THREADS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """How much is drawn, and how long is learned."""

    species: int  # each run of four is a family of look-alikes
    images: int  # training images of a species, which are the gallery too
    queries: int  # test images of a species
    size: int  # side of an image, pixels
    epochs: int  # of each training
    evaluate_every: int  # epochs between two points of the MAP curve
    onnx: bool = True  # write what the search that is suggested starts from, without torch

    def draw(self, seed: int) -> Dataset:
        """Return the data set; its images are drawn when they are read."""
        return plumage(
            self.species, self.images, test_per_species=self.queries, size=self.size, seed=seed
        )

    def config(self, bits: int, *, seed: int) -> RunConfig:
        """Return the settings of one run; how they were chosen: docs/results/demo.md."""
        settings = (
            *drawn_settings(self.size),
            "model.embedding_dim=256",
            "training.ema_decay=0.98",
            f"training.epochs={self.epochs}",
            f"training.evaluate_every={self.evaluate_every}",
            f"training.seed={seed}",
            f"training.onnx={str(self.onnx).lower()}",
        )
        return resolve_config(settings=settings, bits=bits)


FULL = DemoSize(species=20, images=40, queries=15, size=64, epochs=30, evaluate_every=6)
QUICK = DemoSize(species=4, images=6, queries=2, size=32, epochs=2, evaluate_every=1, onnx=False)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured."""

    folder: Path
    recipe: DemoSize
    quick: bool  # whether this was the form that only shows that everything works
    seed: int  # of the birds and of the training
    source: str  # what `open_dataset` opens to get the same birds
    class_names: tuple[str, ...]  # the species
    seconds: float  # from the first bird to the last measure
    evaluations: Mapping[int, Evaluation]  # by code length

    @property
    def longest_first(self) -> list[Evaluation]:
        """The evaluations, that of the longest code first."""
        return [self.evaluations[bits] for bits in sorted(self.evaluations, reverse=True)]

    @property
    def longest(self) -> Evaluation:
        """The evaluation of the longest code."""
        return self.longest_first[0]

    def commands(self) -> tuple[tuple[str, str], ...]:
        """Return what to type next, and what it does."""
        run = shlex.quote(str(self.folder / RUNS / str(self.longest.bits)))
        photo = shlex.quote(str(self.folder / QUERIES / f"{self.class_names[-1]}.png"))
        return (
            (f"phpq search {run} {photo}", "find the species of a bird"),
            (f"phpq info {run}", "every setting of a run, and how it went"),
            ("phpq train YOUR_IMAGES/ --bits 32", "learn from a folder of class folders"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `metrics.json`; MAP and P@N in per cent.

        `map_float` and `map_pq` are those of the longest code; `*_by_bits` has them all.
        """
        by_bits = self.evaluations.items()
        return {
            "made_by": MADE_BY,
            "phpq_version": __version__,
            "quick": self.quick,
            "seed": self.seed,
            "source": self.source,
            "seconds": round(self.seconds, 1),
            "threads": THREADS,
            "map": {str(bits): one.codes.map_percent for bits, one in by_bits},
            "map_float": self.longest.float_search.map_percent,
            "map_soft": self.longest.soft and self.longest.soft.map_percent,
            "map_pq": self.longest.posthoc_pq.map_percent,
            "map_float_by_bits": {str(b): one.float_search.map_percent for b, one in by_bits},
            "map_pq_by_bits": {str(b): one.posthoc_pq.map_percent for b, one in by_bits},
            "runs": {str(bits): _run_facts(one) for bits, one in by_bits},
        }


def run_demo(
    out: str | Path, *, seed: int = 0, quick: bool = False, reporter: Reporter | None = None
) -> DemoResult:
    """Draw birds, learn codes of each length, measure them, and write all of it to a folder.

    That is new or empty, or that of an earlier demo, whose files are replaced once the new ones are
    complete. Another seed draws other species and trains from another start. `quick` takes seconds
    instead of minutes: everything runs, but nothing is learned.
    """
    started = time.perf_counter()
    folder, recipe = Path(out), QUICK if quick else FULL
    reporter = reporter or Reporter()
    with workshop(folder) as unfinished, _torch_threads(THREADS):
        runs = {bits: unfinished / RUNS / str(bits) for bits in BITS}
        here, there = BITS
        with learning_beside(runs[there], there, seed=seed, quick=quick) as other:
            dataset = draw_birds(recipe, seed, reporter)
            reporter.message(f"{here}-bit codes; {there}-bit codes learn at the same time")
            train = partial(train_run, dataset, device="cpu", reporter=reporter)
            model = train(recipe.config(here, seed=seed), runs[here])
            evaluations = {here: _measure(model, dataset, runs[here], folder)}
            reporter.message(f"{there}-bit codes")
            if other.wait() == 0:
                model = load(runs[there], device="cpu", runtime="torch")
                for row in read_rows(runs[there]):
                    reporter.epoch(row)
            else:  # whatever kept it from learning there: here it learns, or the reason shows
                shutil.rmtree(runs[there], ignore_errors=True)
                model = train(recipe.config(there, seed=seed), runs[there])
            evaluations[there] = _measure(model, dataset, runs[there], folder)
        _write_queries(dataset.test, unfinished / QUERIES)
        result = DemoResult(
            folder=folder,
            recipe=recipe,
            quick=quick,
            seed=seed,
            source=dataset.source,
            class_names=dataset.class_names,
            seconds=time.perf_counter() - started,
            evaluations=evaluations,
        )
        hits = (runs[result.longest.bits] / FOLDER / "top10.png").read_bytes()
        courses = {bits: (run / "training.png").read_bytes() for bits, run in runs.items()}
        page = build_page(result, family=draw_family(dataset), hits=hits, training=courses)
        write_report(unfinished / REPORT, page)
        write_json(unfinished / METRICS, result.to_dict())
        names = (*(f"{RUNS}/{bits}" for bits in BITS), QUERIES, REPORT, METRICS)
        install(unfinished, folder, names)
    return result


@contextmanager
def learning_beside(
    run: Path, bits: int, *, seed: int, quick: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """Learn a run in another process, which ends with the context; its code is 0 if it learned."""
    options = {"bits": bits, "seed": seed, "quick": quick, "run": str(run)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "phpq.demo", json.dumps(options)],
        stdin=subprocess.PIPE,  # it ends when this does, as with a parent that was killed
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": str(THREADS)},
        start_new_session=True,  # Ctrl-C is for the parent to answer
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def learn_beside(*, bits: int, seed: int, quick: bool, run: str) -> None:
    """Learn a run as the other process; it ends when its input ends."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    recipe = QUICK if quick else FULL
    with _torch_threads(THREADS):
        dataset = draw_birds(recipe, seed, Reporter())
        train_run(dataset, recipe.config(bits, seed=seed), Path(run), device="cpu")


def draw_birds(recipe: DemoSize, seed: int, reporter: Reporter) -> Dataset:
    """Return the data set with all its images drawn."""
    dataset = recipe.draw(seed)
    train, test = (_draw_once(images, reporter) for images in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


def _measure(model: Model, dataset: Dataset, run: Path, folder: Path) -> Evaluation:
    """Measure a run that will be moved into `folder`."""
    epochs = epoch_scores(read_rows(run))
    measured = evaluate_model(model, dataset, out=run / FOLDER, epochs=epochs)
    return replace(measured, folder=folder / RUNS / run.name / FOLDER)


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """Yield an empty folder inside `folder` that is gone afterwards, whatever happens."""
    _check(folder)
    unfinished, existed = folder / UNFINISHED, folder.is_dir()
    try:
        if unfinished.is_dir():  # of a demo that was killed
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot write to the folder {str(folder)!r}: {error.strerror}. "
            "Give another (--out DIR)."
        ) from error
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not existed and not any(folder.iterdir()):
            folder.rmdir()


def install(unfinished: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Replace what has one of the names, as "runs/16"; the file that marks a demo comes last."""
    for name in names:
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        if place.is_dir():  # a folder cannot take the name of one that is not empty
            old = unfinished / "replaced" / name
            old.parent.mkdir(parents=True, exist_ok=True)
            place.rename(old)
        (unfinished / name).replace(place)


def _check(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file. Give a folder (--out DIR).")
    if not is_taken(folder):
        return
    try:
        content = json.loads((folder / METRICS).read_text("utf-8"))
    except (OSError, ValueError):
        content = None
    made_here = isinstance(content, dict) and content.get("made_by") == MADE_BY
    if not made_here and not (folder / UNFINISHED).is_dir():
        raise ConfigError(
            f"{str(folder)!r} is not empty and holds no earlier demo, so nothing in it is touched. "
            "Give a new or empty folder (--out DIR)."
        )


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _DrawnImages(list[Image.Image]):
    """Images that were drawn before: training and measuring each read them several times."""

    def read(self, index: int) -> Image.Image:
        return self[index]


def _draw_once(split: LabelledImages, reporter: Reporter) -> LabelledImages:
    images = _DrawnImages()
    with reporter.task(f"drawing {split.name}", len(split)) as advance:
        for index in range(len(split)):
            images.append(split.read(index))
            if advance:
                advance(index + 1, len(split))
    return replace(split, reader=images)


def _write_queries(test: LabelledImages, folder: Path) -> None:
    """Write the first query of every species as a PNG."""
    folder.mkdir()
    for label, first in zip(*np.unique(test.labels, return_index=True), strict=True):
        test.read(int(first)).save(folder / f"{test.class_names[label]}.png")


def _run_facts(one: Evaluation) -> dict[str, Any]:
    """Return the figures of one run without its curves, which its own metrics.json has."""
    content = one.to_dict()
    for scores in filter(None, content["scores"].values()):
        del scores["pr_curve"]
    kept = ("scores", "timing", "epochs", "model")
    return {"run": f"{RUNS}/{one.bits}"} | {name: content[name] for name in kept}
