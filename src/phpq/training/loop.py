"""The training loop: a data set and a config in; epochs of steps, and their evaluation.

Decode once, then plain epochs: prepare, plan, step. All randomness is a function of (seed, epoch),
so a resumed run repeats an uninterrupted one, in as many processes as it likes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset, learned_part
from phpq.data.batches import plan_epoch, steps_per_epoch
from phpq.errors import ConfigError, DivergedError
from phpq.evaluation import LabelledEmbeddings, code_health, evaluate_codes
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.method import Method, TrainingSet, build_method
from phpq.model.weights import first_not_finite
from phpq.training.distributed import ALONE, Group, synchronise
from phpq.training.features import load_features
from phpq.training.pixels import TrainingPixels, load_pixels
from phpq.training.progress import Reporter
from phpq.training.step import (
    AveragedWeights,
    GraphedStep,
    TrainStep,
    acceleration,
    build_optimizer,
    rate_factor,
    set_rates,
)

_KEPT_QUERIES = 10_000  # most embeddings of an evaluation that are kept, D floats each
COLLAPSE = 0.19  # share of the largest entropy below which codebooks collapse: 1.5 of 8 bits


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch measured."""

    losses: dict[str, float]  # means: "loss", then each term of the method
    by_step: Tensor  # (steps, 1 + terms) float64 on the CPU: the same, of each step
    codes: NDArray[np.uint8]  # (images, M) of the training crops, as computed in each step
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedCodes:
    """What is kept of an evaluation, to fit probabilities to."""

    queries: LabelledEmbeddings  # of the test split, at most `_KEPT_QUERIES`
    gallery_codes: NDArray[np.uint8]  # (N, M) of the training split


def _freeze(network: Method, config: RunConfig, group: Group) -> FrozenPart:
    if group.size > 1:
        raise ConfigError(
            f"training.trainable={config.training.trainable!r} learns in one process, in minutes. "
            "Start it without torchrun, or use 'all'."
        )
    return freeze_network(network, config)


class Trainer:
    """Holds the parts of one run."""

    def __init__(  # noqa: PLR0913  by name
        self,
        dataset: Dataset,
        config: RunConfig,
        *,
        device: torch.device,
        reporter: Reporter,
        cache: Path | None = None,
        pixels: TrainingPixels | None = None,
        backbone: Mapping[str, Tensor] | None = None,
        features: Callable[[FrozenPart], TrainingPixels] | None = None,
        group: Group = ALONE,
    ) -> None:
        """Build the network, load the pixels, and prepare the first step.

        `training.batch_size` is the batch of the whole group. `cache` is a folder for decoded
        pixels, or for features of the frozen part. `pixels` of another trainer with the same data
        set and `config.data` can be shared. `backbone` is the state of one that has learned before.
        `features` returns features of the frozen part, by default those of `load_features`.
        """
        self.group, self.config, self.device, self.reporter = group, config, device, reporter
        training = config.training
        self.batch_slice = group.batch_slice(training.batch_size)
        dataset = learned_part(dataset, config.data)
        if acceleration(config, device) != "off":
            torch.backends.cudnn.benchmark = True  # shapes never change
        # The network first: a wrong backbone or weights file fails before minutes of decoding.
        torch.manual_seed(training.seed)
        network = build_method(config, len(dataset.class_names), load_weights=backbone is None)
        if backbone is not None:
            network.backbone.load_state_dict(backbone)
        self.network: Method = network.to(device).to(memory_format=torch.channels_last)
        frozen = None if training.trainable == "all" else _freeze(self.network, config, group)
        self.frozen: FrozenPart | None = frozen
        group.broadcast([*self.network.parameters(), *self.network.buffers()])
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        synchronise(self.network, group)
        if frozen is not None:
            default = partial(load_features, dataset, config, reporter=reporter, cache=cache)
            pixels = (features or default)(frozen)
        self.pixels: TrainingPixels = pixels or load_pixels(
            dataset, config, device=device, reporter=reporter, cache=cache, group=group
        )
        self.labels = self.pixels.train.labels
        self.optimizer = build_optimizer(self.network, training)
        self.average: AveragedWeights | None = None
        if training.ema_decay:
            self.average = AveragedWeights(self.network, self.averaged, training.ema_decay)
        self.step = TrainStep(
            self.network,
            self.optimizer,
            self.average,
            config,
            views=self.pixels.views,
            half=frozen is not None and frozen.half,
            group=group,
        )
        self.steps = steps_per_epoch(len(self.labels), training.batch_size)
        self.device_labels = torch.from_numpy(np.array(self.labels)).to(device)
        self.training_set = TrainingSet(
            labels=self.device_labels,
            num_classes=len(self.pixels.train.class_names),
            seed=training.seed,
            epochs=training.epochs,
            embed=lambda: torch.from_numpy(self.pixels.embed_train(self.evaluated_network)).to(
                device
            ),
            apply=self.pixels.apply_train,
            message=reporter.message,
        )
        self.network.start(self.training_set)
        self.prepare_seconds = 0.0  # of the last `prepare_epoch`
        self.last_evaluation: EvaluatedCodes | None = None  # in the first process only
        self._graphed: GraphedStep | None = None
        # Not with several processes: their communication would have to be captured too.
        graphed = acceleration(config, device) != "off" and group.size == 1
        if self.pixels.resident is not None and graphed:
            self._graphed = GraphedStep(
                self.step, self.pixels.resident.pixels, self.device_labels, training.batch_size
            )

    @property
    def evaluated_network(self) -> Method:
        """The network whose weights are saved and evaluated."""
        return self.averaged if self.average is not None else self.network

    @property
    def plain_network(self) -> Method:
        """The evaluated network, with batch norms that work in a single process."""
        if self.evaluated_network is self.network and self.group.size > 1:
            self.averaged.load_state_dict(self.network.state_dict())
            return self.averaged
        return self.evaluated_network

    def prepare_epoch(self, epoch: int) -> None:
        """Let the method prepare an epoch: for instance, initialise its codebooks."""
        started = time.perf_counter()
        change = self.network.prepare_epoch(epoch, self.training_set)
        # All processes computed the same, but rounding may have led k-means to another result.
        self.group.broadcast(self.network.memory().values())
        for name in change.adopt:
            source = self.network.get_submodule(name).state_dict()
            self.group.broadcast(source.values())
            self.averaged.get_submodule(name).load_state_dict(source)
        if change.new_step:
            self.step.restart()
            if self._graphed is not None:
                self._graphed.restart()
        self.prepare_seconds = time.perf_counter() - started

    def compile_evaluation(self) -> None:
        """Compile the network that is evaluated: worth it from half a million images on."""
        self.evaluated_network.backbone.compile(dynamic=False)

    def complete(self) -> None:
        """Let the method fit what is fitted after the last epoch."""
        network = self.evaluated_network
        network.eval().complete(self.training_set)
        self.group.broadcast(network.state_dict().values())

    def train_epoch(self, epoch: int) -> EpochResult:
        """Run all steps of one epoch (from 0)."""
        config = self.config
        plan = plan_epoch(self.labels, epoch, data=config.data, training=config.training)
        mine = np.ascontiguousarray(plan.indices[:, self.batch_slice])
        indices = torch.from_numpy(mine).to(self.device)
        parameters = torch.from_numpy(plan.parameters[:, self.batch_slice]).to(self.device)
        names = ("loss", *self.network.terms)
        losses = torch.zeros(self.steps, len(names), device=self.device)
        shape = (self.steps, config.training.batch_size, config.quantizer.num_codebooks)
        codes = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        if config.training.feature_noise:
            torch.manual_seed(1_000_003 * config.training.seed + epoch)  # of the noise
        started = time.perf_counter()
        stream = self.pixels.source.batches(mine)  # which reads nothing before it is asked
        for number, (rows, drawn) in enumerate(zip(indices, parameters, strict=True)):
            step = epoch * self.steps + number
            factor = rate_factor(step, steps_per_epoch=self.steps, config=config.training)
            set_rates(self.optimizer, factor)
            if self.average is not None:
                self.average.set_step(step)
            if self._graphed is not None:
                result = self._graphed(rows, drawn)
            else:
                result = self.step(next(stream), self.device_labels[rows], rows, drawn)
            losses[number] = result.losses
            codes[number] = result.codes
            self.reporter.step(epoch, number)
        by_step = losses.cpu().double()  # sync point, once per epoch
        seconds = time.perf_counter() - started
        means = dict(zip(names, by_step.mean(0).tolist(), strict=True))
        return EpochResult(means, by_step, codes.flatten(0, 1).cpu().numpy(), seconds)

    def evaluate(self) -> dict[str, Any]:
        """Encode both splits with the evaluated network and measure retrieval.

        Several processes encode together; the first measures, the others return nothing.
        """
        network = self.evaluated_network
        codebooks = network.export()
        queries = LabelledEmbeddings(self.pixels.embed_test(network), self.pixels.test.labels)
        gallery_embeddings = self.pixels.embed_train(network)
        if not self.group.first:
            return {}
        measure = partial(
            evaluate_codes,
            queries,
            gallery_labels=self.labels,
            codebooks=codebooks,
            query_norm=network.query_norm,
        )
        codes = codebooks.encode(gallery_embeddings)
        self.last_evaluation = EvaluatedCodes(_sample(queries, _KEPT_QUERIES), codes)
        scores = measure(codes)
        assert scores.health is not None  # codes always have one
        row = {"map": scores.map_percent, "gallery_distinct_codes": scores.health.distinct_codes}
        learned = self.network.learned_codes()
        if learned is not None:
            row["map_learned"] = measure(learned).map_percent
        return row


def _sample(images: LabelledEmbeddings, most: int) -> LabelledEmbeddings:
    """Return at most `most` embeddings, drawn at random with a fixed seed."""
    if len(images) <= most:
        return images
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:most])
    return LabelledEmbeddings(images.embeddings[chosen], images.labels[chosen])


def run_epochs(
    trainer: Trainer,
    *,
    done: int = 0,
    before: int = 0,
    evaluate: Literal["all", "early", "none"] = "all",
) -> Generator[dict[str, Any], None, None]:
    """Run the epochs of a trainer, and yield the row of metrics.jsonl of each.

    `done` are the epochs that it has run already, `before` those of an earlier part of the run.
    `evaluate` "all" measures every `training.evaluate_every` epochs and the last; "early" leaves
    the last one to the caller; "none" measures nothing, and skips `Trainer.complete`.
    Raises a `DivergedError` at the end of an epoch whose losses or weights are not finite.
    """
    training, reporter, network = trainer.config.training, trainer.reporter, trainer.network
    if not network.learns:
        started = time.perf_counter()
        trainer.complete()
        seconds = time.perf_counter() - started
        yield {"epoch": 0, "seconds": round(seconds, 4)} | trainer.evaluate()
        return
    reporter.start(done=done, epochs=training.epochs, steps=trainer.steps)
    try:
        for epoch in range(done, training.epochs):
            trainer.prepare_epoch(epoch)
            result = trainer.train_epoch(epoch)
            _check_finite(trainer, before + epoch + 1, result)
            row = {"epoch": before + epoch + 1} | _metrics_row(trainer, epoch, result)
            last = epoch + 1 == training.epochs
            due = (epoch + 1) % training.evaluate_every == 0 and not network.fitted_last
            if last and evaluate != "none":
                trainer.complete()
            if evaluate == "all" if last else due and evaluate != "none":
                row |= trainer.evaluate()
            reporter.epoch(row)
            yield row
    finally:
        reporter.finish()  # an interrupted run must restore the terminal too


def _check_finite(trainer: Trainer, epoch: int, result: EpochResult) -> None:
    """Raise a `DivergedError` if losses or weights are not finite after an epoch (from 1)."""
    bad = (~result.by_step.isfinite()).nonzero()
    if len(bad):
        step = int(bad[0, 0])
        # Prefer a term to the total loss (column 0): it tells more.
        term = min((c for row, c in bad.tolist() if row == step), key=lambda c: c or math.inf)
        name, value = list(result.losses)[term], result.by_step[step, term].item()
        seen = f"{name!r} was {value} at step {step + 1} of {trainer.steps}"
    else:
        networks = {"learning": trainer.network, "averaged": trainer.averaged}
        seen = first_not_finite(
            {f"{name}.{k}": v for name, n in networks.items() for k, v in n.state_dict().items()}
        )
    if seen:
        training = trainer.config.training
        raise DivergedError(
            f"Training diverged in epoch {epoch}: {seen}. Nothing of this epoch was kept; the last "
            "checkpoint stays as it was. Start a new run with a lower training.learning_rate (it "
            f"was {training.learning_rate:g}) or with training.precision=float32 (it was "
            f"{training.precision})."
        )


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
        # Codes that are fitted after the last epoch are all equal before.
        "collapsing": not trainer.network.fitted_last
        and health.mean_entropy_bits < COLLAPSE * math.log2(config.quantizer.codebook_size),
    }
