"""The training loop: a data set and a config in; epochs of steps, and their evaluation.

Decode once, then plain epochs: prepare, plan, step. All randomness is a function of (seed, epoch),
so a resumed run repeats an uninterrupted one, in as many processes as it likes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset, hold_out
from phpq.data.batches import plan_epoch, steps_per_epoch
from phpq.evaluation import (
    LabelledEmbeddings,
    RetrievalScores,
    evaluate_codes,
)
from phpq.model.method import Method, TrainingSet, build_method
from phpq.training.distributed import ALONE, Group
from phpq.training.optimizer import AveragedWeights, build_optimizer, rate_factor, set_rates
from phpq.training.pixels import TrainingPixels, load_pixels
from phpq.training.progress import Reporter
from phpq.training.step import GraphedStep, TrainStep, acceleration
from phpq.training.synced_norm import synchronise


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch measured."""

    losses: dict[str, float]  # means: "loss", then each term of the method
    codes: NDArray[np.uint8]  # (images, M) of the training crops as they passed
    seconds: float


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
        group: Group = ALONE,
    ) -> None:
        """Put the parts together.

        Args:
            dataset: Both splits.
            config: Every setting.
            device: Where to learn.
            reporter: Sees the progress.
            cache: A folder for decoded pixels.
            pixels: Of another trainer with the same data set and `config.data`, to be shared.
            backbone: State of a backbone that has learned before.
            group: The processes that learn together; `config.training.batch_size` is the batch of
                all of them.
        """
        self.group = group
        self.config = config
        self.device = device
        self.reporter = reporter
        training = config.training
        self.part = group.part(training.batch_size)
        if config.data.holdout_per_class:
            dataset = hold_out(dataset, config.data.holdout_per_class, seed=0)
        if acceleration(config, device) != "off":
            torch.backends.cudnn.benchmark = True  # shapes never change: let it look for the best
        # The network first: a wrong backbone or weights file shows before minutes of decoding.
        torch.manual_seed(training.seed)
        network = build_method(config, len(dataset.class_names), load_weights=backbone is None)
        if backbone is not None:
            network.backbone.load_state_dict(backbone)
        self.network: Method = network.to(device).to(memory_format=torch.channels_last)
        group.broadcast([*self.network.parameters(), *self.network.buffers()])
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        synchronise(self.network, group)
        self.pixels: TrainingPixels = pixels or load_pixels(
            dataset, config, device=device, reporter=reporter, cache=cache, group=group
        )
        self.labels = self.pixels.train.labels
        self.optimizer = build_optimizer(self.network, training)
        average = (
            AveragedWeights(self.network, self.averaged, training.ema_decay)
            if training.ema_decay
            else None
        )
        self.average = average
        self.step = TrainStep(self.network, self.optimizer, average, config, group=group)
        self.steps = steps_per_epoch(len(self.labels), training.batch_size)
        self.device_labels = torch.from_numpy(np.array(self.labels)).to(device)
        self.training_set = self._training_set()
        self.network.start(self.training_set)
        self._graphed: GraphedStep | None = None
        # Not with several processes: what they exchange would have to be captured too.
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
        """The network as it is evaluated, of modules that need no other process."""
        if self.evaluated_network is self.network and self.group.size > 1:
            self.averaged.load_state_dict(self.network.state_dict())
            return self.averaged
        return self.evaluated_network

    def prepare_epoch(self, epoch: int) -> None:
        """Let the method do what it does before an epoch, as starting its codebooks."""
        change = self.network.prepare_epoch(epoch, self.training_set)
        # All processes did the same; by rounding, k-means may still have come to another end.
        self.group.broadcast(self.network.memory().values())
        for name in change.adopt:
            source = self.network.get_submodule(name).state_dict()
            self.group.broadcast(source.values())
            self.averaged.get_submodule(name).load_state_dict(source)
        if change.new_step:
            self.step.restart()
            if self._graphed is not None:
                self._graphed.restart()

    def compile_evaluation(self) -> None:
        """Compile the network that is evaluated: worth it from half a million images on."""
        self.evaluated_network.backbone.compile(dynamic=False)

    def complete(self) -> None:
        """Let the method fit what it fits after the last epoch."""
        network = self.evaluated_network
        network.eval().complete(self.training_set)
        self.group.broadcast(network.state_dict().values())

    def _training_set(self) -> TrainingSet:
        def embed() -> torch.Tensor:
            embeddings = self.pixels.embed_train(self.evaluated_network)
            return torch.from_numpy(embeddings).to(self.device)

        return TrainingSet(
            labels=self.device_labels,
            num_classes=len(self.pixels.train.class_names),
            seed=self.config.training.seed,
            epochs=self.config.training.epochs,
            embed=embed,
            apply=self.pixels.apply_train,
            message=self.reporter.message,
        )

    def train_epoch(self, epoch: int) -> EpochResult:
        """Run all steps of one epoch (from 0)."""
        config = self.config
        count = self.steps
        plan = plan_epoch(self.labels, epoch, data=config.data, training=config.training)
        mine = np.ascontiguousarray(plan.indices[:, self.part])
        indices = torch.from_numpy(mine).to(self.device)
        parameters = torch.from_numpy(plan.parameters[:, self.part]).to(self.device)
        batch, books = config.training.batch_size, config.quantizer.num_codebooks
        names = ("loss", *self.network.terms)
        losses = torch.zeros(count, len(names), device=self.device)
        codes = torch.zeros(count, batch, books, dtype=torch.uint8, device=self.device)
        started = time.perf_counter()
        stream = None if self._graphed else self.pixels.source.batches(mine)
        for number in range(count):
            step = epoch * self.steps + number
            factor = rate_factor(step, steps_per_epoch=self.steps, config=config.training)
            set_rates(self.optimizer, factor)
            if self.average is not None:
                self.average.set_step(step)
            if self._graphed is not None:
                result = self._graphed(indices[number], parameters[number])
            else:
                assert stream is not None
                rows = indices[number]
                labels = self.device_labels[rows]
                result = self.step(next(stream), labels, rows, parameters[number])
            losses[number] = result.losses
            codes[number] = result.codes
            self.reporter.step(epoch, number)
        means = losses.double().mean(0).tolist()  # sync point, once an epoch
        seconds = time.perf_counter() - started
        mean = dict(zip(names, means, strict=True))
        return EpochResult(mean, codes.flatten(0, 1).cpu().numpy(), seconds)

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

        def measure(gallery: NDArray[np.uint8]) -> RetrievalScores:
            return evaluate_codes(
                queries,
                gallery,
                gallery_labels=self.labels,
                codebooks=codebooks,
                query_norm=network.query_norm,
            )

        scores = measure(codebooks.encode(gallery_embeddings))
        assert scores.health is not None  # codes always have one
        row = {
            "map": scores.map_percent,
            "gallery_distinct_codes": scores.health.distinct_codes,
        }
        learned = self.network.learned_codes()
        if learned is not None:
            row["map_learned"] = measure(learned).map_percent
        return row
