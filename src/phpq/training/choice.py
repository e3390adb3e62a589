"""What each choice of `training.trainable` takes on this machine, measured on a few images."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages, learned_part
from phpq.errors import ConfigError
from phpq.training.loop import Trainer
from phpq.training.progress import Advance, Reporter

FEW = 16  # images that are learned from, in two steps
ENOUGH = 600  # seconds that a user waits


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one choice."""

    features: float  # to let all images pass the frozen stem, once
    learning: float  # all epochs, and their evaluation

    @property
    def total(self) -> float:
        """All of it."""
        return self.features + self.learning


def measure_choices(dataset: Dataset, configs: Mapping[str, RunConfig]) -> dict[str, Cost]:
    """Return what a run with each of the configs would take on this machine's processor.

    A frozen part that does not suit the method or the backbone is left out.
    """
    costs = {}
    for name, config in configs.items():
        try:
            costs[name] = _measure(dataset, config)
        except ConfigError:
            if config.training.trainable == "all":
                raise
    return costs


def best_choice(costs: Mapping[str, Cost]) -> str:
    """Return the last, and so the best, that ends in about ten minutes, or else the fastest."""
    fitting = [name for name, cost in costs.items() if cost.total <= ENOUGH]
    return fitting[-1] if fitting else min(costs, key=lambda name: costs[name].total)


class _Stopwatch(Reporter):
    """Adds up how long images take before they can be learned from."""

    seconds = 0.0

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance | None]:
        started = time.perf_counter()
        yield None
        self.seconds += time.perf_counter() - started


def _measure(dataset: Dataset, config: RunConfig) -> Cost:
    learned, training = learned_part(dataset, config.data), config.training
    few = Dataset("few", _few(learned.train, FEW), _few(learned.test, 2))
    changes = dataclasses.replace(training, batch_size=FEW // 2, epochs=2, warmup_epochs=0.0)
    data = dataclasses.replace(config.data, holdout_per_class=0, holdout_classes=0.0)
    small = dataclasses.replace(config, training=changes, data=data)
    watch = _Stopwatch()
    with torch.random.fork_rng(devices=[]):
        trainer = Trainer(few, small, device=torch.device("cpu"), reporter=watch)
        images = len(few.train) + len(few.test)
        step, embed = 0.0, 0.0
        for epoch in range(2):  # of which the first finds memory and kernels
            trainer.prepare_epoch(epoch)
            step = trainer.train_epoch(epoch).seconds / (trainer.steps * changes.batch_size)
            started = time.perf_counter()
            trainer.pixels.embed_train(trainer.evaluated_network)
            embed = (time.perf_counter() - started) / len(few.train)
    count, queries = len(learned.train), len(learned.test)
    evaluations = math.ceil(training.epochs / training.evaluate_every)
    encoded = (evaluations + 1) * count + evaluations * queries  # once more for the codebooks
    if training.trainable == "all":
        encoded += count  # for the general embedding, which otherwise has features at hand
    learning = training.epochs * count * step + encoded * embed
    return Cost(watch.seconds / images * (count + queries), learning)


def _few(images: LabelledImages, count: int) -> LabelledImages:
    """Return some images, spread over a set, as two classes."""
    rows = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64))
    some = images.subset(rows)
    return LabelledImages(
        some.name, some.ids, np.arange(len(rows)) % 2, ("a", "b"), some.reader, some.places
    )
