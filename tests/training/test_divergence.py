"""A loss or weights that are not finite end a run, and nothing of them is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import process_groups
from phpq.errors import DivergedError
from phpq.evaluation.history import read_rows
from phpq.model import Network, load
from phpq.model.checkpoint import STATE
from phpq.model.method import Learned
from phpq.training import Reporter, Trainer, learn_backbone, run_epochs
from process_groups import together
from tiny_runs import tiny_birds, tiny_config, tiny_train

CPU = torch.device("cpu")
STEPS = 3  # of an epoch


def make_trainer(*assignments: str) -> Trainer:
    return Trainer(tiny_birds(), tiny_config(*assignments), device=CPU, reporter=Reporter())


def spoil(monkeypatch: pytest.MonkeyPatch, *, call: int, term: int, value: float) -> None:
    """Make one term of the objective, and so the loss, `value` at a call (from 0)."""
    plain, calls = Network.objective, iter(range(10_000))

    def objective(self: Network, *arguments: Any) -> Learned:
        learned = plain(self, *arguments)
        if next(calls) != call:
            return learned
        parts = list(learned.parts)
        parts[term] = parts[term] * value
        return dataclasses.replace(learned, loss=learned.loss * value, parts=tuple(parts))

    monkeypatch.setattr(Network, "objective", objective)


@pytest.mark.parametrize(
    ("value", "term", "name"),
    [
        (float("nan"), 1, "contrastive"),
        pytest.param(float("inf"), 0, "classific", marks=pytest.mark.rare),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, term: int, name: str
) -> None:
    folder, config = tmp_path / "run", tiny_config()
    with monkeypatch.context() as patched:
        spoil(patched, call=2 * STEPS + 1, term=term, value=value)
        expected = rf"in epoch 3: '{name}.*' was {value} at step 2 of 3.*learning_rate.*float32"
        with pytest.raises(DivergedError, match=expected):
            tiny_train(folder, config)
    assert load(folder, device="cpu").epochs == 2
    assert [row["epoch"] for row in read_rows(folder)] == [1, 2]
    resumed = tiny_train(folder, config, resume=True)
    assert resumed.fingerprint() == tiny_train(tmp_path / "whole", config).fingerprint()


def test_a_run_that_diverges_at_once_writes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, call=0, term=0, value=float("nan"))
    with pytest.raises(DivergedError, match=r"in epoch 1: .* at step 1 of 3"):
        tiny_train(tmp_path, tiny_config())
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_weights_that_are_not_finite_end_the_run_though_all_losses_were(decay: float) -> None:
    trainer = make_trainer(f"training.ema_decay={decay}")

    class Spoiler(Reporter):
        def step(self, epoch: int, number: int) -> None:
            if (epoch, number) == (1, STEPS - 1):  # after the last step
                trainer.network.get_buffer("norm.running_var")[0] = torch.inf

    trainer.reporter = Spoiler()
    epochs = run_epochs(trainer)
    assert next(epochs)["epoch"] == 1
    with pytest.raises(DivergedError, match=r"epoch 2: 'learning.norm.running_var' has 1 values"):
        next(epochs)


def test_the_classifier_that_comes_first_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("method.name=lsh", "quantizer.codebook_size=256")
    plain = trainer.network.extract

    def extract(images: Tensor) -> Tensor:
        return cast(Tensor, plain(images) * torch.nan)

    monkeypatch.setattr(trainer.network, "extract", extract)
    with pytest.raises(DivergedError, match="'loss' was nan at step 1"):
        learn_backbone(trainer)


def test_all_processes_end_if_one_computes_what_is_not_finite(tmp_path: Path) -> None:
    config = tiny_config("training.optimizer=sgd")
    folder = tmp_path / "run"
    call = 2 * STEPS + 1
    assert together(2, process_groups.train_and_diverge, config, folder, call) == [0, 0]
    said = {(tmp_path / f"diverged-{rank}").read_text("utf-8") for rank in range(2)}
    assert len(said) == 1
    assert "in epoch 3: 'classification' was nan at step 2" in said.pop()
    assert (folder / STATE).is_file()
    assert load(folder, device="cpu").epochs == 2
