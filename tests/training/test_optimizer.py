"""Rates against a plain formula, groups over a whole run, and the average against a plain loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from phpq.config import TrainingConfig
from phpq.training.optimizer import AveragedWeights, build_optimizer, rate_factor, set_rates
from tiny_runs import tiny_network


def plain_factor(step: int, warmup: float, total: int, final: float) -> float:
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@pytest.mark.parametrize(
    ("epochs", "warmup", "final"), [(10, 1.0, 0.01), (7, 0.0, 0.0), (5, 2.5, 0.3), (3, 0.5, 1.0)]
)
def test_rates_follow_the_formula(epochs: int, warmup: float, final: float) -> None:
    config = TrainingConfig(epochs=epochs, warmup_epochs=warmup, final_rate=final)
    for step in range(epochs * 4):
        expected = plain_factor(step, warmup * 4, epochs * 4, final)
        got = rate_factor(step, steps_per_epoch=4, config=config)
        assert got == pytest.approx(expected, rel=1e-12)


def test_rates_rise_then_fall_and_stay_positive() -> None:
    config = TrainingConfig(epochs=6, warmup_epochs=2.0, final_rate=0.05)
    rates = [rate_factor(step, steps_per_epoch=5, config=config) for step in range(30)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[10] == 1.0
    assert 0 < rates[0] < 0.15
    assert 0.05 <= rates[-1] < 0.07


def test_a_warm_up_longer_than_the_run_takes_half_of_it() -> None:
    config = TrainingConfig(epochs=1, warmup_epochs=5.0)
    rates = [rate_factor(step, steps_per_epoch=8, config=config) for step in range(8)]
    assert max(rates) == rates[4] == 1.0


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_groups_keep_their_rates_over_a_whole_run(kind: str) -> None:
    # A published scheduler writes one rate into all groups, so theirs is lost after a step.
    config = TrainingConfig(
        epochs=5,
        optimizer=kind,  # type: ignore[arg-type]
        learning_rate=1e-3,
        head_rate_factor=7.0,
    )
    network = tiny_network()
    optimizer = build_optimizer(network, config)
    trunk, head = optimizer.param_groups
    for step in range(5 * 3):
        factor = rate_factor(step, steps_per_epoch=3, config=config)
        set_rates(optimizer, factor)
        optimizer.step()
        assert trunk["lr"] == pytest.approx(1e-3 * factor, rel=1e-9)
        assert head["lr"] == pytest.approx(7 * trunk["lr"], rel=1e-9)


def test_the_head_moves_by_its_factor() -> None:
    config = TrainingConfig(
        optimizer="sgd", learning_rate=0.01, head_rate_factor=4.0, weight_decay=0.0
    )
    network = tiny_network()
    optimizer = build_optimizer(network, config)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in network.named_parameters():
        moved = (before[name] - parameter.detach()).mean().item()
        rate = 0.01 if name.startswith("backbone.") else 0.04
        assert moved == pytest.approx(1.9 * rate, rel=1e-3)  # Nesterov: 1 + 0.9


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)],
)
def test_the_optimizer_is_the_one_named(kind: str, expected: type) -> None:
    config = TrainingConfig(optimizer=kind, weight_decay=0.05)  # type: ignore[arg-type]
    optimizer = build_optimizer(tiny_network(), config)
    assert type(optimizer) is expected
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.05}


def test_tensor_rates_are_filled_in_place() -> None:
    # A captured graph reads the tensor it has seen.
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([{"params": [nn.Parameter(torch.ones(1))], "base_rate": 0.5}])
    optimizer.param_groups[0]["lr"] = rate
    set_rates(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def small_module(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    for tensor in module.state_dict().values():
        tensor.fill_(value)
    return module


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_the_average_equals_a_plain_loop(decay: float) -> None:
    source, target = small_module(0.0), small_module(1.0)
    average = AveragedWeights(source, target, decay)
    expected = 1.0
    for step in range(40):
        value = math.sin(step)
        for tensor in source.state_dict().values():
            if tensor.is_floating_point():
                tensor.fill_(value)
        average.set_step(step)
        average.update()
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * value
        for name, tensor in target.state_dict().items():
            if tensor.is_floating_point():  # weights and running statistics alike
                assert tensor.item() == pytest.approx(expected, abs=1e-5), name


def test_the_average_leaves_its_source_alone_and_sees_loaded_weights() -> None:
    source, target = small_module(0.0), small_module(1.0)
    average = AveragedWeights(source, target, 0.9)
    source.load_state_dict(small_module(4.0).state_dict())  # as resuming does
    average.set_step(10**6)
    average.update()
    assert source.state_dict()["0.weight"].item() == 4.0
    assert target.state_dict()["0.weight"].item() == pytest.approx(1.3)
