"""One step of learning: what moves, at which rate, what is averaged, and what does not leak."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from phpq.config import RunConfig, TrainingConfig
from phpq.data.batches import draw_augmentations
from phpq.model import Network, build_method
from phpq.model.network import phpq_loss
from phpq.training.distributed import ALONE, Group
from phpq.training.step import (
    AveragedWeights,
    GraphedStep,
    LearningStep,
    StepResult,
    TrainStep,
    acceleration,
    build_optimizer,
    gather_batch,
    rate_factor,
    set_rates,
)
from tiny_runs import CLASSES, SIDE, tiny_config, tiny_network

CPU = torch.device("cpu")


@dataclass
class Made:
    """A step, and the two networks that it moves."""

    step: TrainStep
    network: Network
    averaged: Network


def make_step(config: RunConfig, *, device: torch.device = CPU) -> Made:
    torch.manual_seed(0)
    network = cast(Network, build_method(config, CLASSES).to(device))
    averaged = copy.deepcopy(network)
    average = AveragedWeights(network, averaged, config.training.ema_decay)
    optimizer = build_optimizer(network, config.training)
    return Made(TrainStep(network, optimizer, average, config), network, averaged)


def make_batch(
    config: RunConfig, count: int = 8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return pixels, labels, rows and the augmentation."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    parameters = draw_augmentations(rng, count, config.data)
    labels = torch.arange(count) % CLASSES
    return torch.from_numpy(pixels), labels, torch.arange(count), torch.from_numpy(parameters)


def weights(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def test_a_step_moves_backbone_head_codebooks_and_average() -> None:
    config = tiny_config()
    made = make_step(config)
    before, before_average = weights(made.network), weights(made.averaged)
    result = made.step(*make_batch(config))
    after, after_average = weights(made.network), weights(made.averaged)
    for name in (
        "backbone.pyramid.conv1.0.weight",
        "pooling.steps.0.weight",
        "transform.weight",
        "norm.running_mean",
        "quantizer.codebooks",
        "classifier.weight",
    ):
        assert not torch.equal(before[name], after[name]), name
        assert not torch.equal(before_average[name], after_average[name]), name
    assert result.losses.isfinite().all()
    assert not result.losses.requires_grad
    assert result.codes.shape == (8, 4)
    assert result.codes.dtype == torch.uint8


def test_the_losses_are_those_of_the_objective() -> None:
    config = tiny_config("loss.gamma=0.5")
    made = make_step(config)
    pixels, labels, rows, parameters = make_batch(config)
    twin = copy.deepcopy(made.network).train()
    terms = phpq_loss(twin(made.step.views.train(pixels, parameters)), labels, config.loss, 4)
    result: StepResult = made.step(pixels, labels, rows, parameters)
    expected = torch.stack(terms).detach()
    torch.testing.assert_close(result.losses, expected, rtol=1e-4, atol=1e-5)


def test_steps_on_one_batch_lower_its_loss() -> None:
    config = tiny_config("data.crop_scale=1.0", "data.flip=false")
    step = make_step(config).step
    batch = make_batch(config)
    losses = [step(*batch).losses[0].item() for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


def test_without_codebooks_they_stay_as_they_are() -> None:
    config = tiny_config()
    made = make_step(config)
    made.network.quantized = False
    before = made.network.quantizer.codebooks.detach().clone()
    result = made.step(*make_batch(config))
    assert torch.equal(made.network.quantizer.codebooks, before)
    assert result.losses.isfinite().all()
    made.network.quantized = True
    made.step(*make_batch(config))
    assert not torch.equal(made.network.quantizer.codebooks, before)


def test_half_precision_runs_on_the_cpu_with_full_weights() -> None:
    half, full = tiny_config("training.precision=bf16"), tiny_config("training.precision=float32")
    results = []
    for config in (half, full):
        made = make_step(config)
        seen: list[torch.dtype] = []
        made.network.pooling.register_forward_pre_hook(
            lambda _, inputs, seen=seen: seen.append(inputs[0][0].dtype)
        )
        results.append(made.step(*make_batch(config)).losses)
        assert {p.dtype for p in made.network.parameters()} == {torch.float32}
        assert seen == [torch.bfloat16 if config is half else torch.float32]
    torch.testing.assert_close(results[0], results[1], rtol=0.05, atol=0.05)


def test_nothing_is_accelerated_away_from_cuda() -> None:
    cuda = torch.device("cuda")
    for wanted in ("auto", "full", "graph", "off"):
        config = tiny_config(f"training.accelerate={wanted}")
        assert acceleration(config, CPU) == "off"
        assert acceleration(config, cuda) == ("graph" if wanted == "auto" else wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_replayed_graph_learns_as_plain_steps_do() -> None:
    device = torch.device("cuda")
    config = tiny_config("training.precision=float32")
    batches = [make_batch(config, seed=seed) for seed in range(12)]
    pixels = torch.cat([batch[0] for batch in batches]).to(device)
    labels = torch.cat([batch[1] for batch in batches]).to(device)
    plain = make_step(config, device=device).step
    graphed = GraphedStep(make_step(config, device=device).step, pixels, labels, 8)
    for number, (_, _, _, parameters) in enumerate(batches):
        rows = torch.arange(8 * number, 8 * number + 8, device=device)
        batch = (pixels[rows], labels[rows], rows, parameters.to(device))
        expected = plain(*batch).losses.clone()
        got = graphed(rows, parameters.to(device)).losses
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert graphed.graph is not None


def test_the_network_is_put_back_into_training_mode() -> None:
    config = tiny_config()
    step = make_step(config).step
    step.network.eval()  # as an evaluation leaves it
    step(*make_batch(config))
    assert step.network.training


def test_tiny_networks_are_alike_whoever_makes_them() -> None:
    config = tiny_config()
    network = make_step(config).network
    assert torch.equal(network.transform.weight, tiny_network().transform.weight)


def test_one_process_gathers_nothing_and_needs_no_wrapper() -> None:
    values = torch.randn(3, 2, requires_grad=True)
    assert gather_batch(values, ALONE) is values
    config = tiny_config()
    made = make_step(config)
    made.step(*make_batch(config))
    assert made.step._parallel is None


def test_only_tensors_are_gathered() -> None:
    with pytest.raises(TypeError, match="expected tensors"):
        gather_batch("text", Group(0, 2))


def test_the_learning_step_returns_losses_without_gradients() -> None:
    config = tiny_config()
    learning = LearningStep(tiny_network(), "float32", ALONE).train()
    pixels, labels, rows, _ = make_batch(config)
    loss, losses, codes = learning(pixels / 255, labels, rows)
    assert loss.requires_grad
    assert not losses.requires_grad
    assert losses[0] == loss
    assert codes.shape == (8, 4)


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
