"""Costs follow from seconds per image; the best that fits is taken."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from phpq.config import override
from phpq.training import Trainer
from phpq.training.choice import SAMPLE_IMAGES, Cost, best_choice, measure_choices
from phpq.training.loop import EpochResult
from tiny_runs import tiny_birds, tiny_config

CHOICES = ("head", "last", "all")


def test_the_best_that_ends_in_time_is_taken_or_else_the_fastest() -> None:
    def best(*seconds: float) -> str:
        return best_choice({n: Cost(1, s - 1) for n, s in zip(CHOICES, seconds, strict=True)})

    assert best(100, 500, 600) == "all"
    assert best(100, 500, 601) == "last"
    assert best(100, 700, 9000) == "head"
    assert best(700, 800, 9000) == "head"


def test_costs_grow_with_epochs_and_images(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = Trainer.train_epoch

    def timed(self: Trainer, epoch: int) -> EpochResult:
        assert len(self.labels) == SAMPLE_IMAGES
        return dataclasses.replace(
            normal(self, epoch), seconds=SAMPLE_IMAGES * 0.5
        )  # half a second each

    monkeypatch.setattr(Trainer, "train_epoch", timed)
    settings = {
        name: tiny_config(f"training.trainable={name}", "training.epochs=100") for name in CHOICES
    }
    before = torch.get_rng_state()
    costs = measure_choices(tiny_birds(), settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(costs) == list(CHOICES)
    for cost in costs.values():
        assert cost.features > 0
        assert cost.learning >= 100 * 24 * 0.5
        assert cost.total == cost.features + cost.learning


def test_a_choice_that_does_not_suit_the_settings_is_left_out() -> None:
    config = tiny_config("data.eval_flip=true", "training.epochs=1")
    settings = {name: override(config, [f"training.trainable={name}"]) for name in CHOICES}
    assert list(measure_choices(tiny_birds(), settings)) == ["all"]


def test_classes_and_images_that_are_held_out_are_not_counted() -> None:
    settings = ("training.trainable=head", "data.holdout_classes=0.5", "data.holdout_per_class=1")
    assert measure_choices(tiny_birds(), {"head": tiny_config(*settings)})["head"].total > 0
