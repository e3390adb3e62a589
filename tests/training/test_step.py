"""One step of learning: what moves, what is averaged, and what does not leak."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch

from phpq.config import RunConfig
from phpq.data.augment import draw_augmentations
from phpq.losses import phpq_loss
from phpq.model import Network, build_method
from phpq.training.distributed import ALONE, Group, Launch
from phpq.training.optimizer import AveragedWeights, build_optimizer
from phpq.training.step import (
    GraphedStep,
    LearningStep,
    StepResult,
    TrainStep,
    acceleration,
    gather_batch,
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
    expected = torch.stack([terms.total, terms.classification, terms.contrastive]).detach()
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
        gather_batch("text", Group(Launch(0, 2)))


def test_the_learning_step_returns_losses_without_gradients() -> None:
    config = tiny_config()
    learning = LearningStep(tiny_network(), "float32", ALONE).train()
    pixels, labels, rows, _ = make_batch(config)
    loss, losses, codes = learning(pixels / 255, labels, rows)
    assert loss.requires_grad
    assert not losses.requires_grad
    assert losses[0] == loss
    assert codes.shape == (8, 4)
