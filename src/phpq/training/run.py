"""A whole run: a data set and a config in, a run folder and a model out.

Epochs, with a row of metrics each, now and then an evaluation and a checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset
from phpq.errors import ConfigError
from phpq.evaluation import code_health
from phpq.files import remove_temporaries, write_bytes
from phpq.model.checkpoint import ModelCard, read_card, write_card, write_weights
from phpq.model.method import build_method
from phpq.model.retrieval import Model, resolve_device
from phpq.recipes import classifier_config, remaining_config
from phpq.report.plots import plot_training
from phpq.training.distributed import ALONE, Group
from phpq.training.loop import EpochResult, Trainer
from phpq.training.optimizer import rate_factor
from phpq.training.progress import Reporter, SilentReporter
from phpq.training.state import (
    STATE,
    RunState,
    read_metrics,
    write_metrics,
)

COLLAPSE = 0.19  # of the largest entropy of a codebook: 1.5 of 8 bits


def train_run(  # noqa: PLR0913  by name
    dataset: Dataset,
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    reporter: Reporter | None = None,
    cache: Path | None = None,
    group: Group | None = None,
) -> Model:
    """Train a model and write its run folder.

    Args:
        dataset: Training split (also the gallery) and test split (the queries).
        config: Every setting.
        folder: Where the run is written; must be new, or the one to resume.
        device: "auto" takes CUDA where there is one.
        resume: Continue a run that was interrupted.
        reporter: Sees the progress; silent by default.
        cache: A folder for decoded pixels.
        group: The processes that learn together, each of which calls this; the first writes the
            folder, which all must be able to read. On CUDA each has its own device.
    """
    group = group or ALONE
    reporter = reporter if reporter and group.first else SilentReporter()
    place = resolve_device(device) if group.size == 1 else group.device
    group.on_first(lambda: _check_folder(folder, config, resume=resume))
    begun = resume and (folder / STATE).is_file()
    _check_shared(folder, begun=begun, group=group)
    origin = dataset.source or dataset.name
    card = ModelCard(config=config, class_names=dataset.class_names, dataset=origin)
    trainer = build_trainer(
        dataset,
        config,
        device=place,
        reporter=reporter,
        cache=cache,
        begun=begun,
        ready=lambda: group.on_first(lambda: write_card(folder, card)),
        group=group,
    )
    group.on_first(lambda: remove_temporaries(folder))
    state = RunState(trainer.network, trainer.averaged, trainer.optimizer)
    done = 0
    before = config.training.epochs - trainer.config.training.epochs  # of the classifier
    if begun:
        done = state.load(folder)
        reporter.message(f"resuming after epoch {before + done}")
    rows = read_metrics(folder, epochs=before + done) if done else []
    reporter.start(done=done, epochs=trainer.config.training.epochs, steps=trainer.steps)
    try:
        _run_epochs(trainer, state, folder, rows=rows, done=done, before=before)
    finally:
        reporter.finish()  # an interrupted run must give the terminal back too
    group.on_first(lambda: _finish(folder, rows))
    network = trainer.plain_network
    return Model(network, card, device=trainer.device, epochs=rows[-1]["epoch"])


def build_trainer(  # noqa: PLR0913  by name
    dataset: Dataset,
    config: RunConfig,
    *,
    device: torch.device,
    reporter: Reporter,
    cache: Path | None = None,
    begun: bool = False,
    ready: Callable[[], object] = lambda: None,
    group: Group = ALONE,
) -> Trainer:
    """Return the trainer of a method, its backbone fine-tuned first if the config asks for it.

    Args:
        dataset: Both splits.
        config: Every setting.
        device: Where to learn.
        reporter: Sees the progress.
        cache: A folder for decoded pixels.
        begun: The method has begun to learn, and a state will be loaded: spare the fine-tuning.
        ready: Called once all settings and images are known to be good, before any epoch.
        group: The processes that learn together.
    """
    first = None if begun else classifier_config(config)
    if first is None:
        rest = remaining_config(config)
        trainer = Trainer(dataset, rest, device=device, reporter=reporter, cache=cache, group=group)
        ready()
        return trainer
    build_method(config, len(dataset.class_names), load_weights=False)  # shows bad options now
    classifier = Trainer(dataset, first, device=device, reporter=reporter, cache=cache, group=group)
    ready()
    backbone = learn_backbone(classifier)
    return Trainer(
        dataset,
        remaining_config(config),
        device=device,
        reporter=reporter,
        pixels=classifier.pixels,
        backbone=backbone,
        group=group,
    )


def learn_backbone(classifier: Trainer) -> dict[str, Tensor]:
    """Run all epochs of a classifier and return the state of its backbone."""
    training, reporter = classifier.config.training, classifier.reporter
    reporter.message(f"fine-tuning the backbone as a classifier for {training.epochs} epochs")
    reporter.start(done=0, epochs=training.epochs, steps=classifier.steps)
    try:
        for epoch in range(training.epochs):
            classifier.prepare_epoch(epoch)
            classifier.train_epoch(epoch)
    finally:
        reporter.finish()
    state = classifier.evaluated_network.backbone.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _run_epochs(
    trainer: Trainer,
    state: RunState,
    folder: Path,
    *,
    rows: list[dict[str, Any]],
    done: int,
    before: int,
) -> None:
    training = trainer.config.training
    saved = time.monotonic()
    if not trainer.network.learns:
        _fit_only(trainer, folder, rows=rows)
        return
    for epoch in range(done, training.epochs):
        trainer.prepare_epoch(epoch)
        result = trainer.train_epoch(epoch)
        last = epoch + 1 == training.epochs
        row = {"epoch": before + epoch + 1} | _metrics_row(trainer, epoch, result)
        early = (epoch + 1) % training.evaluate_every == 0 and not trainer.network.fitted_last
        if last:
            trainer.complete()
        if last or early:
            row |= trainer.evaluate()
        rows.append(row)
        if not trainer.group.first:
            continue  # one process writes, and the next step waits for it
        trainer.reporter.epoch(row)
        # In this order a kill between two files costs nothing: rows beyond the state are dropped
        # on resuming, and weights without a state are those of a finished run.
        write_metrics(folder, rows)
        if last or time.monotonic() - saved >= training.checkpoint_seconds:
            if not last:
                state.save(folder, epoch + 1)
            write_weights(folder, trainer.evaluated_network, epoch=before + epoch + 1)
            saved = time.monotonic()


def _fit_only(trainer: Trainer, folder: Path, *, rows: list[dict[str, Any]]) -> None:
    """Run a method that has no epochs."""
    started = time.perf_counter()
    trainer.complete()
    seconds = time.perf_counter() - started
    rows.append({"epoch": 0, "seconds": round(seconds, 4)} | trainer.evaluate())
    if trainer.group.first:
        write_metrics(folder, rows)
        write_weights(folder, trainer.evaluated_network, epoch=0)


def _finish(folder: Path, rows: list[dict[str, Any]]) -> None:
    if find_spec("matplotlib") is not None:  # a machine that only trains needs no pictures
        write_bytes(folder / "training.png", plot_training(rows))
    (folder / STATE).unlink(missing_ok=True)


def _metrics_row(trainer: Trainer, epoch: int, result: EpochResult) -> dict[str, Any]:
    config = trainer.config
    images = trainer.steps * config.training.batch_size
    health = code_health(result.codes, config.quantizer.codebook_size)
    step = (epoch + 1) * trainer.steps - 1
    factor = rate_factor(step, steps_per_epoch=trainer.steps, config=config.training)
    return {
        **result.losses,
        "learning_rate": config.training.learning_rate * factor,
        "seconds": round(result.seconds, 4),
        "images_per_second": round(images / result.seconds, 1),
        "distinct_codes": health.distinct_codes,
        "dead_codewords": health.dead_total,
        "entropy_bits": health.mean_entropy_bits,
        # Codes that are fitted last are all alike until then.
        "collapsing": not trainer.network.fitted_last
        and health.mean_entropy_bits < COLLAPSE * math.log2(config.quantizer.codebook_size),
    }


def _check_shared(folder: Path, *, begun: bool, group: Group) -> None:
    """Make sure that all processes see the state to resume from, or that none does."""
    if not (group.every(begun) or group.every(not begun)):
        raise ConfigError(
            f"Some of the {group.size} processes see a state to resume in {str(folder)!r}, others "
            "do not. Put the run folder where all machines can read it."
        )


def _check_folder(folder: Path, config: RunConfig, *, resume: bool) -> None:
    """Refuse to mix two runs in one folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file. Give a folder for the run.")
    holds_run = (folder / "config.json").is_file()
    if resume and not holds_run:
        raise ConfigError(
            f"There is no run to resume in {str(folder)!r}: it has no config.json. "
            "Give the folder of an interrupted run, or start one without resuming."
        )
    if resume:
        if read_card(folder).config != config:
            raise ConfigError(
                f"The config differs from that of the run in {str(folder)!r}. Resume with the same "
                "settings, or start in a new folder."
            )
        if (folder / "weights.safetensors").is_file() and not (folder / STATE).is_file():
            raise ConfigError(
                f"The run in {str(folder)!r} is finished; there is nothing to resume. "
                "Start another in a new folder."
            )
    elif holds_run or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(
            f"{str(folder)!r} is not empty. Give a new folder (--out DIR), or continue the run in "
            f"it (phpq train --resume {folder})."
        )
