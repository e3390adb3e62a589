"""A whole run: a data set and a config in, a run folder and a model out.

    config.json          the resolved config, the classes, the data set, the version
    weights.safetensors  the model as of the last checkpoint (averaged weights)
    chances.json         how likely answers by its codes are, if there are enough test images
    general.safetensors  its general embedding, once the run is finished
    encoder.onnx         the same two for machines without torch, if `training.onnx` is set and
    general.onnx         the packages are installed
    state.safetensors    what resuming needs; deleted once the run is finished
    metrics.jsonl        one row per epoch

Every file is replaced atomically: a kill at any moment leaves the last checkpoint readable.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phpq.additive import MIN_IMAGES, CodeClassifier, calibrate_codes
from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages, learned_part, unseen_split
from phpq.errors import ConfigError, DataError, FormatError
from phpq.evaluation.embedding import embed_readable
from phpq.evaluation.history import METRICS, read_rows
from phpq.files import is_taken, remove_temporaries, write_bytes, write_text
from phpq.model.checkpoint import (
    GENERAL,
    STATE,
    WEIGHTS,
    ModelCard,
    interrupted_card,
    read_network,
    write_card,
    write_chances,
    write_weights,
)
from phpq.model.export import lacks_onnx, write_onnx
from phpq.model.general import fit_general, write_general
from phpq.model.method import Method, build_method
from phpq.model.retrieval import TorchModel, load_torch, resolve_device
from phpq.model.weights import read_safetensors, write_safetensors
from phpq.recipes import classifier_config, head_config, remaining_config
from phpq.report.pictures import plot_training
from phpq.training.distributed import ALONE, Group
from phpq.training.features import extend_features
from phpq.training.loop import Trainer, run_epochs
from phpq.training.progress import Reporter

_UNSEEN_IMAGES = 2000  # most images of held-out classes that probabilities are fitted to


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
) -> TorchModel:
    """Train a model and write its run folder, which must be new, or the one to resume.

    The training split is also the gallery, the test split the queries; `cache` is a folder for
    decoded pixels. Each process of a group calls this; the first writes the folder, which all must
    be able to read. On CUDA each has its own device. Resuming a finished run of an older version
    adds what it lacks: its general embedding with `chances.json`, and its ONNX files.
    """
    group = group or ALONE
    reporter = reporter if reporter and group.first else Reporter()
    own_device = resolve_device(device) if group.size == 1 else group.device
    group.on_first(lambda: _check_folder(folder, config, resume=resume))
    begun = resume and (folder / STATE).is_file()
    finished = resume and not begun and (folder / WEIGHTS).is_file()
    if not any(group.every(seen) for seen in (begun, finished, not begun and not finished)):
        raise ConfigError(
            f"Some of the {group.size} processes see a state to resume in {str(folder)!r}, others "
            "do not. Put the run folder where all machines can read it."
        )
    origin = dataset.source or dataset.name
    names = learned_part(dataset, config.data).class_names
    card = ModelCard(config=config, class_names=names, dataset=origin)
    if finished and group.every((folder / GENERAL).is_file()):
        network, epochs = read_network(folder, card)
        return _with_onnx(network, card, folder, epochs, own_device, reporter, group)

    def ready() -> None:
        if not finished:
            group.on_first(lambda: write_card(folder, card))

    trainer = build_trainer(
        dataset,
        config,
        device=own_device,
        reporter=reporter,
        cache=cache,
        begun=begun or finished,
        ready=ready,
        group=group,
    )
    group.on_first(lambda: remove_temporaries(folder))
    if finished:
        network, epochs = read_network(folder, card)
        trainer.evaluated_network.load_state_dict(network.state_dict())
        trainer.evaluate()
    else:
        before = config.training.epochs - trainer.config.training.epochs  # of the classifier
        epochs = _learn(trainer, folder, before=before, begun=begun)
    # Before the general embedding, whose file marks the run as finished.
    unseen = unseen_split(dataset, config.data)[0] if config.data.holdout_classes else None
    model = TorchModel(
        trainer.plain_network,
        card,
        device=own_device,
        epochs=epochs,
        folder=folder,
        frozen=trainer.frozen,
    )
    group.on_first(lambda: _write_chances(trainer, model, unseen, folder))
    general = fit_general(trainer.evaluated_network, config, trainer.training_set)
    group.on_first(lambda: write_general(folder, general))
    return _with_onnx(trainer.plain_network, card, folder, epochs, own_device, reporter, group)


def _write_chances(
    trainer: Trainer, model: TorchModel, unseen: LabelledImages | None, folder: Path
) -> None:
    """Fit and write how likely answers by the codes are; nothing if there are too few test images.

    Queries are the test split and, if classes were held out, training images of these as examples
    of unknown classes. Their test images stay unused, for later measurements.
    """
    evaluated = trainer.last_evaluation
    assert evaluated is not None  # the first process has evaluated the last epoch
    names, codes = model.class_names, evaluated.gallery_codes
    classifier = CodeClassifier.from_codes(
        model.codebooks, codes, trainer.labels, names, norm=model.query_norm
    )
    vectors = evaluated.queries.embeddings
    labels = [names[label] for label in evaluated.queries.labels.tolist()]
    # With too few queries of known classes nothing is fitted anyway.
    if unseen is not None and len(unseen) and len(labels) >= MIN_IMAGES:
        most = min(len(unseen), _UNSEEN_IMAGES)
        chosen = np.sort(np.random.default_rng(0).permutation(len(unseen))[:most])
        # These images were not checked before, and the run does not need them.
        with suppress(DataError):
            found = embed_readable(model, unseen.subset(chosen))
            vectors = np.concatenate([vectors, found.embeddings])
            labels += [unseen.class_names[label] for label in found.images.labels.tolist()]
    classifier = calibrate_codes(classifier, (vectors, labels))
    if classifier.probabilities is not None:
        write_chances(folder, classifier.calibration, model.fingerprint())


def _with_onnx(
    network: Method,
    card: ModelCard,
    folder: Path,
    epochs: int,
    device: torch.device,
    reporter: Reporter,
    group: Group,
) -> TorchModel:
    """Return the model of a finished run, after its ONNX files are written."""
    model = TorchModel(network, card, device=device, epochs=epochs, folder=folder)

    def write() -> None:
        reporter.message("writing the ONNX files")
        # Read from its file: the trained network may be on another device, or compiled.
        if reason := write_onnx(load_torch(folder, card, device="cpu"), folder):
            reporter.message(f"{reason} Then write them with: phpq export {folder}")

    if card.config.training.onnx:
        group.on_first(write)
    return model


def _learn(trainer: Trainer, folder: Path, *, before: int, begun: bool) -> int:
    """Run the remaining epochs; returns the number of all epochs, with those of before."""
    state = RunState(trainer.network, trainer.averaged, trainer.optimizer)
    done, rows = 0, list[dict[str, Any]]()
    if begun:
        done = state.load(folder)
        trainer.reporter.message(f"resuming after epoch {before + done}")
        rows = [row for row in read_rows(folder) if row["epoch"] <= before + done]
    _run(trainer, state, folder, rows=rows, done=done, before=before)
    trainer.group.on_first(lambda: _finish(folder, rows))
    return int(rows[-1]["epoch"])


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

    A run that has `begun` skips the fine-tuning, since its state will be loaded. `ready` is called
    once all settings and images are known to be valid, before the first epoch.
    """
    first, rest = None if begun else classifier_config(config), remaining_config(config)
    make = partial(Trainer, dataset, device=device, reporter=reporter, group=group)
    if first is None:
        trainer = make(rest, cache=cache)
        ready()
        if rest.training.trainable == "last" and not begun and trainer.network.learns:
            start_from_head(trainer, make)
        return trainer
    build_method(config, len(dataset.class_names), load_weights=False)  # shows bad options now
    classifier = make(first, cache=cache)
    ready()
    return make(rest, pixels=classifier.pixels, backbone=learn_backbone(classifier))


def start_from_head(trainer: Trainer, make: Callable[..., Trainer]) -> None:
    """Train the head alone, which takes seconds, before the last stage is trained with it."""
    trainer.reporter.message("learning the head first")
    config = head_config(trainer.config)
    head = make(config, features=partial(extend_features, trainer.pixels, config))
    for _ in run_epochs(head, evaluate="none"):
        pass
    for network in (trainer.network, trainer.averaged):
        network.load_state_dict(head.evaluated_network.state_dict())


def learn_backbone(classifier: Trainer) -> dict[str, Tensor]:
    """Run all epochs of a classifier and return the state of its backbone."""
    epochs = classifier.config.training.epochs
    classifier.reporter.message(f"fine-tuning the backbone as a classifier for {epochs} epochs")
    for _ in run_epochs(classifier, evaluate="none"):
        pass
    state = classifier.evaluated_network.backbone.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items()}


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything that a training step depends on, as it is saved and restored."""

    network: Method
    averaged: Method
    optimizer: torch.optim.Optimizer

    def save(self, folder: Path, epoch: int) -> None:
        """Write the state after `epoch` finished epochs."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        tensors |= {f"memory.{k}": v for k, v in self.network.memory().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            for name, value in entry.items():
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        write_safetensors(folder / STATE, tensors, {"epoch": str(epoch)})

    def load(self, folder: Path) -> int:
        """Restore the last saved state; returns the number of finished epochs."""
        path = folder / STATE
        tensors, metadata = read_safetensors(path)
        parts = defaultdict[str, dict[str, Tensor]](dict)
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        try:
            self.network.load_state_dict(parts["network"])
            self.averaged.load_state_dict(parts["averaged"])
            for name, target in self.network.memory().items():
                target.copy_(parts["memory"][name])
            self._load_optimizer(parts["optimizer"])
            return int(metadata["epoch"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise FormatError(
                f"{str(path)!r} does not fit this run ({str(error).splitlines()[0]}). "
                "Resume with the config it was made with, or start in a new folder."
            ) from error

    def _load_optimizer(self, entries: dict[str, Tensor]) -> None:
        state = defaultdict[int, dict[str, Tensor]](dict)
        for key, value in entries.items():
            index, _, name = key.partition(".")
            state[int(index)][name] = value
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": dict(state)})
        # In the memory format of the weights (channels last), which fused optimizers require.
        for weight, entry in self.optimizer.state.items():
            for name, value in entry.items():
                if value.shape == weight.shape:
                    entry[name] = torch.empty_like(weight).copy_(value)
        # A captured graph reads the original tensors, which loading has replaced.
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _run(
    trainer: Trainer,
    state: RunState,
    folder: Path,
    *,
    rows: list[dict[str, Any]],
    done: int,
    before: int,
) -> None:
    """Run the epochs, and write metrics and checkpoints."""
    epochs, every = trainer.config.training.epochs, trainer.config.training.checkpoint_seconds
    saved = time.monotonic()
    with closing(run_epochs(trainer, done=done, before=before)) as measured:
        for row in measured:
            rows.append(row)
            if not trainer.group.first:
                continue  # one process writes, and the next step waits for it
            # In this order a kill between two files costs nothing: rows beyond the state are
            # dropped on resuming, and weights without a state are those of a finished run.
            write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
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


def _check_folder(folder: Path, config: RunConfig, *, resume: bool) -> None:
    """Refuse to mix two runs in one folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file. Give a folder for the run.")
    if resume:
        if interrupted_card(folder).config != config:
            raise ConfigError(
                f"The config differs from that of the run in {str(folder)!r}. Resume with the same "
                "settings, or start in a new folder."
            )
        lacking = not (folder / GENERAL).is_file() or lacks_onnx(folder, config)
        if not lacking and not (folder / STATE).is_file():
            raise ConfigError(
                f"The run in {str(folder)!r} is finished; there is nothing to resume. "
                "Start another in a new folder."
            )
    elif is_taken(folder):
        raise ConfigError(
            f"{str(folder)!r} is not empty. Give a new folder (--out DIR), or continue the run in "
            f"it (phpq train --resume {folder})."
        )
