"""Saving and restoring a run: every bit, and clear words for a state that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from phpq.config import TrainingConfig
from phpq.errors import FormatError
from phpq.training.optimizer import build_optimizer, set_rates
from phpq.training.state import (
    METRICS,
    STATE,
    RunState,
    read_metrics,
    write_metrics,
)
from tiny_runs import SIDE, tiny_network


def make_state(*assignments: str, optimizer: str = "adam", seed: int = 0) -> RunState:
    network = tiny_network(*assignments, seed=seed)
    averaged = tiny_network(*assignments, seed=seed + 50)
    config = TrainingConfig(optimizer=optimizer, learning_rate=0.01)  # type: ignore[arg-type]
    return RunState(network, averaged, build_optimizer(network, config))


def take_steps(state: RunState, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        pixels = torch.rand(4, 3, SIDE, SIDE, generator=generator)
        state.optimizer.zero_grad()
        torch.autograd.backward(state.network.train()(pixels).logits.square().sum())
        state.optimizer.step()


def same_weights(first: RunState, second: RunState) -> bool:
    return all(
        torch.equal(value, theirs.state_dict()[key])
        for ours, theirs in (
            (first.network, second.network),
            (first.averaged, second.averaged),
        )
        for key, value in ours.state_dict().items()
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_restored_state_goes_on_as_the_saved_one(tmp_path: Path, optimizer: str) -> None:
    state = make_state(optimizer=optimizer)
    take_steps(state, 2)
    state.save(tmp_path, 5)
    restored = make_state(optimizer=optimizer, seed=1)
    take_steps(restored, 1)  # whatever it held before is forgotten
    assert restored.load(tmp_path) == 5
    assert same_weights(state, restored)
    for each in (state, restored):
        take_steps(each, 2, seed=9)
    assert same_weights(state, restored)


def test_a_state_before_the_first_step_is_restored(tmp_path: Path) -> None:
    make_state().save(tmp_path, 0)
    restored = make_state(seed=1)
    assert restored.load(tmp_path) == 0
    assert same_weights(make_state(), restored)


def test_rates_stay_those_of_the_running_schedule(tmp_path: Path) -> None:
    state = make_state()
    take_steps(state, 1)
    state.save(tmp_path, 1)
    set_rates(state.optimizer, 0.25)
    rates = [group["lr"] for group in state.optimizer.param_groups]
    state.load(tmp_path)
    assert [group["lr"] for group in state.optimizer.param_groups] == rates
    assert all("base_rate" in group for group in state.optimizer.param_groups)


@pytest.mark.parametrize(
    "other", ["model.embedding_dim=64", "model.backbone=test_vit", "quantizer.codebook_size=16"]
)
def test_a_state_of_another_run_is_refused(tmp_path: Path, other: str) -> None:
    make_state(other).save(tmp_path, 1)
    with pytest.raises(FormatError, match=r"state\.safetensors' does not fit this run"):
        make_state().load(tmp_path)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    make_state().save(tmp_path, 1)
    content = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(content[:-100])
    with pytest.raises(FormatError, match=r"state\.safetensors' is damaged"):
        make_state().load(tmp_path)


def test_rows_come_back_up_to_the_epoch_that_counts(tmp_path: Path) -> None:
    assert read_metrics(tmp_path, epochs=3) == []
    rows = [{"epoch": epoch, "loss": 1 / epoch} for epoch in range(1, 6)]
    write_metrics(tmp_path, rows)
    assert read_metrics(tmp_path, epochs=5) == rows
    assert read_metrics(tmp_path, epochs=3) == rows[:3]
    assert len((tmp_path / METRICS).read_text().splitlines()) == 5


@pytest.mark.parametrize("torn", ['{"epoch": 3, "lo', "", "\n", "{", "\x00\x00\x00"])
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: str) -> None:
    rows = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + torn
    (tmp_path / METRICS).write_text(text, "utf-8")
    assert read_metrics(tmp_path, epochs=9) == rows
