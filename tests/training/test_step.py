"""One step of learning: what moves, what is averaged, and what does not leak."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from phpq.config import RunConfig
from phpq.data.augment import draw_augmentations
from phpq.losses import phpq_loss
from phpq.model import Network
from phpq.training.optimizer import AveragedWeights, build_optimizer
from phpq.training.step import GraphedStep, StepResult, TrainStep, acceleration
from tiny_runs import CLASSES, SIDE, tiny_config, tiny_network

CPU = torch.device("cpu")


def make_step(config: RunConfig, *, device: torch.device = CPU) -> tuple[TrainStep, Network]:
    torch.manual_seed(0)
    network = Network(config.model, config.quantizer, CLASSES).to(device)
    averaged = copy.deepcopy(network)
    average = AveragedWeights(network, averaged, config.training.ema_decay)
    optimizer = build_optimizer(network, config.training)
    return TrainStep(network, optimizer, average, config), averaged


def make_batch(
    config: RunConfig, count: int = 8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    parameters = draw_augmentations(rng, count, config.data)
    labels = torch.arange(count) % CLASSES
    return torch.from_numpy(pixels), labels, torch.from_numpy(parameters)


def weights(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def test_a_step_moves_backbone_head_codebooks_and_average() -> None:
    config = tiny_config()
    step, averaged = make_step(config)
    before, before_average = weights(step.network), weights(averaged)
    result = step(*make_batch(config))
    after, after_average = weights(step.network), weights(averaged)
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
    step, _ = make_step(config)
    pixels, labels, parameters = make_batch(config)
    twin = copy.deepcopy(step.network).train()
    terms = phpq_loss(twin(step.views.train(pixels, parameters)), labels, config.loss, 4)
    result: StepResult = step(pixels, labels, parameters)
    expected = torch.stack([terms.total, terms.classification, terms.contrastive]).detach()
    torch.testing.assert_close(result.losses, expected, rtol=1e-4, atol=1e-5)


def test_steps_on_one_batch_lower_its_loss() -> None:
    config = tiny_config("data.crop_scale=1.0", "data.flip=false")
    step, _ = make_step(config)
    batch = make_batch(config)
    losses = [step(*batch).losses[0].item() for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


def test_without_codebooks_they_stay_as_they_are() -> None:
    config = tiny_config()
    step, _ = make_step(config)
    step.quantized = False
    before = step.network.quantizer.codebooks.detach().clone()
    result = step(*make_batch(config))
    assert torch.equal(step.network.quantizer.codebooks, before)
    assert result.losses.isfinite().all()
    step.quantized = True
    step(*make_batch(config))
    assert not torch.equal(step.network.quantizer.codebooks, before)


def test_half_precision_runs_on_the_cpu_with_full_weights() -> None:
    half, full = tiny_config("training.precision=bf16"), tiny_config("training.precision=float32")
    results = {}
    for config in (half, full):
        step, _ = make_step(config)
        seen: list[torch.dtype] = []
        step.network.pooling.register_forward_pre_hook(
            lambda _, inputs, seen=seen: seen.append(inputs[0][0].dtype)
        )
        results[config] = step(*make_batch(config)).losses
        assert {p.dtype for p in step.network.parameters()} == {torch.float32}
        assert seen == [torch.bfloat16 if config is half else torch.float32]
    torch.testing.assert_close(results[half], results[full], rtol=0.05, atol=0.05)


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
    plain, _ = make_step(config, device=device)
    graphed = GraphedStep(make_step(config, device=device)[0], pixels, labels, 8)
    for number, (_, _, parameters) in enumerate(batches):
        rows = torch.arange(8 * number, 8 * number + 8, device=device)
        expected = plain(pixels[rows], labels[rows], parameters.to(device)).losses.clone()
        got = graphed(rows, parameters.to(device)).losses
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    assert graphed.graph is not None


def test_the_network_is_put_back_into_training_mode() -> None:
    config = tiny_config()
    step, _ = make_step(config)
    step.network.eval()  # as an evaluation leaves it
    step(*make_batch(config))
    assert step.network.training


def test_tiny_networks_are_alike_whoever_makes_them() -> None:
    config = tiny_config()
    step, _ = make_step(config)
    assert torch.equal(step.network.transform.weight, tiny_network().transform.weight)
