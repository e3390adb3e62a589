"""The training loop: a data set and a config in, a run folder and a model out.

Decode once, start the codebooks, then plain epochs: plan, step, record, now and then evaluate and
checkpoint. All randomness is a function of (seed, epoch), so a resumed run repeats an uninterrupted
one.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phpq.config import RunConfig
from phpq.data import Dataset, hold_out
from phpq.data.batches import plan_epoch, steps_per_epoch
from phpq.errors import ConfigError
from phpq.evaluation import LabelledEmbeddings, code_health, evaluate_codes
from phpq.evaluation.plots import plot_training
from phpq.model.checkpoint import ModelCard, read_card, write_card, write_weights
from phpq.model.network import Network
from phpq.model.retrieval import Model, resolve_device
from phpq.training.optimizer import AveragedWeights, build_optimizer, rate_factor, set_rates
from phpq.training.pixels import TrainingPixels, load_pixels
from phpq.training.progress import Reporter, SilentReporter
from phpq.training.state import (
    STATE,
    RunState,
    read_metrics,
    remove_temporaries,
    write_metrics,
)
from phpq.training.step import GraphedStep, TrainStep, acceleration


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch measured."""

    losses: NDArray[np.float64]  # (3,) mean total, classification, contrastive
    codes: NDArray[np.uint8]  # (images, M) of the training crops as they passed
    seconds: float


class Trainer:
    """Holds the parts of one run."""

    def __init__(
        self,
        dataset: Dataset,
        config: RunConfig,
        *,
        device: torch.device,
        reporter: Reporter,
        cache: Path | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.reporter = reporter
        training = config.training
        if config.data.holdout_per_class:
            dataset = hold_out(dataset, config.data.holdout_per_class, seed=0)
        if acceleration(config, device) != "off":
            torch.backends.cudnn.benchmark = True  # shapes never change: let it look for the best
        # The network first: a wrong backbone or weights file shows before minutes of decoding.
        torch.manual_seed(training.seed)
        network = Network(config.model, config.quantizer, len(dataset.class_names))
        self.network = network.to(device).to(memory_format=torch.channels_last)
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.pixels: TrainingPixels = load_pixels(
            dataset, config, device=device, reporter=reporter, cache=cache
        )
        self.labels = self.pixels.train.labels
        self.optimizer = build_optimizer(self.network, training)
        average = (
            AveragedWeights(self.network, self.averaged, training.ema_decay)
            if training.ema_decay
            else None
        )
        self.average = average
        self.step = TrainStep(self.network, self.optimizer, average, config)
        self.steps = steps_per_epoch(len(self.labels), training.batch_size)
        self.device_labels = torch.from_numpy(np.array(self.labels)).to(device)
        self._graphed: GraphedStep | None = None
        if self.pixels.resident is not None and acceleration(config, device) != "off":
            self._graphed = GraphedStep(
                self.step, self.pixels.resident.pixels, self.device_labels, training.batch_size
            )

    @property
    def evaluated_network(self) -> Network:
        """The network whose weights are saved and evaluated."""
        return self.averaged if self.average is not None else self.network

    def prepare_epoch(self, epoch: int) -> None:
        """Start the codebooks when their epoch has come; before it, train without them."""
        first = self.config.training.codebook_epoch
        quantized = epoch >= first
        if epoch == first:
            self._start_codebooks()
        if quantized != self.step.quantized:
            self.step.quantized = quantized
            if self._graphed is not None:
                self._graphed.restart()

    def _start_codebooks(self) -> None:
        """Put the codebooks where the data is, if the config asks for it."""
        if self.config.quantizer.init == "kmeans":
            self.reporter.message("starting the codebooks by k-means")
            network = self.evaluated_network
            embeddings = torch.from_numpy(self.pixels.embed_train(network)).to(self.device)
            self.network.quantizer.fit(embeddings, seed=self.config.training.seed)
        self.averaged.quantizer.load_state_dict(self.network.quantizer.state_dict())

    def train_epoch(self, epoch: int) -> EpochResult:
        """Run all steps of one epoch (from 0)."""
        config = self.config
        plan = plan_epoch(self.labels, epoch, data=config.data, training=config.training)
        indices = torch.from_numpy(plan.indices).to(self.device)
        parameters = torch.from_numpy(plan.parameters).to(self.device)
        batch, books = config.training.batch_size, config.quantizer.num_codebooks
        losses = torch.zeros(self.steps, 3, device=self.device)
        codes = torch.zeros(self.steps, batch, books, dtype=torch.uint8, device=self.device)
        started = time.perf_counter()
        stream = None if self._graphed else self.pixels.source.batches(plan.indices)
        for number in range(self.steps):
            step = epoch * self.steps + number
            factor = rate_factor(step, steps_per_epoch=self.steps, config=config.training)
            set_rates(self.optimizer, factor)
            if self.average is not None:
                self.average.set_step(step)
            if self._graphed is not None:
                result = self._graphed(indices[number], parameters[number])
            else:
                assert stream is not None
                labels = self.device_labels[indices[number]]
                result = self.step(next(stream), labels, parameters[number])
            losses[number] = result.losses
            codes[number] = result.codes
            self.reporter.step(epoch, number)
        mean = losses.double().mean(0).cpu().numpy()  # sync point, once an epoch
        seconds = time.perf_counter() - started
        return EpochResult(mean, codes.flatten(0, 1).cpu().numpy(), seconds)

    def evaluate(self) -> dict[str, Any]:
        """Encode both splits with the evaluated network and measure retrieval."""
        network = self.evaluated_network
        codebooks = network.quantizer.export()
        gallery = codebooks.encode(self.pixels.embed_train(network))
        queries = LabelledEmbeddings(self.pixels.embed_test(network), self.pixels.test.labels)
        scores = evaluate_codes(
            queries,
            gallery,
            gallery_labels=self.labels,
            codebooks=codebooks,
            query_norm=self.config.quantizer.query_norm,
        )
        assert scores.health is not None  # codes always have one
        return {
            "map": scores.map_percent,
            "gallery_distinct_codes": scores.health.distinct_codes,
        }


def train_run(
    dataset: Dataset,
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    reporter: Reporter | None = None,
    cache: Path | None = None,
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
    """
    reporter = reporter or SilentReporter()
    _check_folder(folder, config, resume=resume)
    trainer = Trainer(
        dataset, config, device=resolve_device(device), reporter=reporter, cache=cache
    )
    origin = dataset.source or dataset.name
    card = ModelCard(config=config, class_names=dataset.class_names, dataset=origin)
    write_card(folder, card)
    remove_temporaries(folder)
    state = RunState(trainer.network, trainer.averaged, trainer.optimizer)
    done = 0
    if resume and (folder / STATE).is_file():
        done = state.load(folder)
        reporter.message(f"resuming after epoch {done}")
    rows = read_metrics(folder, epochs=done) if done else []
    reporter.start(done=done, epochs=config.training.epochs, steps=trainer.steps)
    try:
        _run_epochs(trainer, state, folder, rows=rows, done=done)
    finally:
        reporter.finish()  # an interrupted run must give the terminal back too
    plot_training(rows, folder / "training.png")
    (folder / STATE).unlink(missing_ok=True)
    network = trainer.evaluated_network
    return Model(network, card, device=trainer.device, epochs=config.training.epochs)


def _run_epochs(
    trainer: Trainer, state: RunState, folder: Path, *, rows: list[dict[str, Any]], done: int
) -> None:
    training = trainer.config.training
    saved = time.monotonic()
    for epoch in range(done, training.epochs):
        trainer.prepare_epoch(epoch)
        result = trainer.train_epoch(epoch)
        last = epoch + 1 == training.epochs
        row = _metrics_row(trainer, epoch, result)
        if last or (epoch + 1) % training.evaluate_every == 0:
            row |= trainer.evaluate()
        rows.append(row)
        trainer.reporter.epoch(row)
        # In this order a kill between two files costs nothing: rows beyond the state are dropped
        # on resuming, and weights without a state are those of a finished run.
        write_metrics(folder, rows)
        if last or time.monotonic() - saved >= training.checkpoint_seconds:
            if not last:
                state.save(folder, epoch + 1)
            write_weights(folder, trainer.evaluated_network, epoch=epoch + 1)
            saved = time.monotonic()


def _metrics_row(trainer: Trainer, epoch: int, result: EpochResult) -> dict[str, Any]:
    config = trainer.config
    images = trainer.steps * config.training.batch_size
    health = code_health(result.codes, config.quantizer.codebook_size)
    total, classification, contrastive = (float(value) for value in result.losses)
    step = (epoch + 1) * trainer.steps - 1
    factor = rate_factor(step, steps_per_epoch=trainer.steps, config=config.training)
    return {
        "epoch": epoch + 1,
        "loss": total,
        "classification": classification,
        "contrastive": contrastive,
        "learning_rate": config.training.learning_rate * factor,
        "seconds": round(result.seconds, 4),
        "images_per_second": round(images / result.seconds, 1),
        "distinct_codes": health.distinct_codes,
        "dead_codewords": health.dead_total,
        "entropy_bits": health.mean_entropy_bits,
    }


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
