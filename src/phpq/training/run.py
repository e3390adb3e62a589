"""A whole run: a data set and a config in, a run folder and a model out.

Epochs, with a row of metrics each, now and then an evaluation and a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phpq.config import CONFIG_FILE, RunConfig
from phpq.data import Dataset
from phpq.errors import ConfigError
from phpq.files import remove_temporaries, write_bytes
from phpq.model.checkpoint import ModelCard, read_card, write_card, write_weights
from phpq.model.method import build_method
from phpq.model.retrieval import Model, resolve_device
from phpq.recipes import classifier_config, remaining_config
from phpq.report.plots import plot_training
from phpq.training.distributed import ALONE, Group
from phpq.training.loop import Trainer, run_epochs
from phpq.training.progress import Reporter
from phpq.training.state import STATE, RunState, read_metrics, write_metrics


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
    reporter = reporter if reporter and group.first else Reporter()
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
    _run(trainer, state, folder, rows=rows, done=done, before=before)
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
    epochs = classifier.config.training.epochs
    classifier.reporter.message(f"fine-tuning the backbone as a classifier for {epochs} epochs")
    for _ in run_epochs(classifier, evaluate="none"):
        pass
    state = classifier.evaluated_network.backbone.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _run(
    trainer: Trainer,
    state: RunState,
    folder: Path,
    *,
    rows: list[dict[str, Any]],
    done: int,
    before: int,
) -> None:
    """Run the epochs and write the files of each."""
    epochs, every = trainer.config.training.epochs, trainer.config.training.checkpoint_seconds
    saved = time.monotonic()
    with closing(run_epochs(trainer, done=done, before=before)) as measured:
        for row in measured:
            rows.append(row)
            if not trainer.group.first:
                continue  # one process writes, and the next step waits for it
            # In this order a kill between two files costs nothing: rows beyond the state are
            # dropped on resuming, and weights without a state are those of a finished run.
            write_metrics(folder, rows)
            learned = row["epoch"] - before
            last = learned >= epochs or not trainer.network.learns
            if last or time.monotonic() - saved >= every:
                if not last:
                    state.save(folder, learned)
                write_weights(folder, trainer.evaluated_network, epoch=row["epoch"])
                saved = time.monotonic()


def _finish(folder: Path, rows: list[dict[str, Any]]) -> None:
    if find_spec("matplotlib") is not None:  # a machine that only trains needs no pictures
        write_bytes(folder / "training.png", plot_training(rows))
    (folder / STATE).unlink(missing_ok=True)


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
    holds_run = (folder / CONFIG_FILE).is_file()
    if resume and not holds_run:
        raise ConfigError(
            f"There is no run to resume in {str(folder)!r}: it has no {CONFIG_FILE}. "
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
