"""How long a run takes on this machine's CPU for each `training.trainable`, from a few images."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages, learned_part
from phpq.data.images import spread
from phpq.errors import ConfigError
from phpq.training.loop import Trainer
from phpq.training.progress import Advance, Reporter

SAMPLE_IMAGES = 16  # training images that are timed, in two steps
LONGEST_SECONDS = 600  # that a user is expected to wait for a run


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated seconds of a run."""

    features: float  # of the frozen part, for all images, once
    learning: float  # all epochs, and their evaluation

    @property
    def total(self) -> float:
        """All of it."""
        return self.features + self.learning


def measure_choices(dataset: Dataset, configs: Mapping[str, RunConfig]) -> dict[str, Cost]:
    """Estimate the cost of a run with each of the configs on the CPU.

    Configs that freeze what the method or the backbone cannot freeze are left out.
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
    """Return the last, and so the best, that takes `LONGEST_SECONDS` at most; else the fastest."""
    fitting = [name for name, cost in costs.items() if cost.total <= LONGEST_SECONDS]
    return fitting[-1] if fitting else min(costs, key=lambda name: costs[name].total)


class _Stopwatch(Reporter):
    """Adds up the time of the tasks before training: decoding, and features of the frozen part."""

    seconds = 0.0

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance | None]:
        started = time.perf_counter()
        yield None
        self.seconds += time.perf_counter() - started


def _measure(dataset: Dataset, config: RunConfig) -> Cost:
    learned, training = learned_part(dataset, config.data), config.training
    sample = Dataset("few", _sample(learned.train, SAMPLE_IMAGES), _sample(learned.test, 2))
    short = replace(training, batch_size=SAMPLE_IMAGES // 2, epochs=2, warmup_epochs=0)
    data = replace(config.data, holdout_per_class=0, holdout_classes=0.0)
    small = replace(config, training=short, data=data)
    watch = _Stopwatch()
    with torch.random.fork_rng(devices=[]):
        trainer = Trainer(sample, small, device=torch.device("cpu"), reporter=watch)
        images = len(sample.train) + len(sample.test)
        step, embed = 0.0, 0.0  # seconds per image
        for epoch in range(2):  # the first warms up
            trainer.prepare_epoch(epoch)
            step = trainer.train_epoch(epoch).seconds / (trainer.steps * short.batch_size)
            started = time.perf_counter()
            trainer.pixels.embed_train(trainer.evaluated_network)
            embed = (time.perf_counter() - started) / len(sample.train)
    count, queries = len(learned.train), len(learned.test)
    evaluations = math.ceil(training.epochs / training.evaluate_every)
    encoded = (evaluations + 1) * count + evaluations * queries  # once more for the codebooks
    if training.trainable == "all":
        encoded += count  # for the general embedding, whose features are cached otherwise
    learning = training.epochs * count * step + encoded * embed
    return Cost(watch.seconds / images * (count + queries), learning)


def _sample(images: LabelledImages, count: int) -> LabelledImages:
    """Return some images, spread over a set, with made-up labels of two classes."""
    some = images.subset(spread(len(images), count))
    return replace(some, labels=np.arange(len(some)) % 2, class_names=("a", "b"))
