"""The whole network: shapes, the formulas joined, modes and parameter groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from phpq.model import Network
from phpq.model.method import TrainingSet
from reference import linear_loop, reconstruct_loop
from tiny_runs import CLASSES, SIDE, tiny_network


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_every_part_of_the_output_has_its_shape(pixels: torch.Tensor) -> None:
    output = tiny_network()(pixels)
    assert output.embedding.shape == output.reconstruction.shape == (4, 32)
    assert output.logits.shape == output.embedding_logits.shape == (4, CLASSES)
    assert all(
        part.dtype == torch.float32
        for part in (output.embedding, output.reconstruction, output.logits)
    )


def test_the_parts_are_joined_as_the_paper_joins_them(pixels: torch.Tensor) -> None:
    network = tiny_network("model.embedding_norm=none").eval()
    with torch.no_grad():
        output = network(pixels)
        fused = network.pooling(network.backbone(pixels))
    transform, classifier = network.transform, network.classifier
    for image in range(len(pixels)):
        embedding = linear_loop(
            transform.weight.tolist(), transform.bias.tolist(), fused[image].tolist()
        )
        soft = reconstruct_loop(embedding, network.quantizer.codebooks.tolist(), alpha=4.0, kappa=3)
        logits = linear_loop(classifier.weight.tolist(), classifier.bias.tolist(), soft)
        for got, expected in (
            (output.embedding, embedding),
            (output.reconstruction, soft),
            (output.logits, logits),
        ):
            torch.testing.assert_close(got[image], torch.tensor(expected), rtol=1e-3, atol=1e-4)


def test_batch_norm_centres_the_embeddings(pixels: torch.Tensor) -> None:
    embedding = tiny_network("model.embedding_norm=batch").train().embed(pixels)
    torch.testing.assert_close(embedding.mean(0), torch.zeros(32), rtol=0, atol=1e-4)
    plain = tiny_network("model.embedding_norm=none").train().embed(pixels)
    assert plain.mean(0).abs().max() > 1e-3


def test_passing_through_skips_the_codebooks_only(pixels: torch.Tensor) -> None:
    network = tiny_network().eval()
    embedding = network.embed(pixels)
    passed, soft = network.quantize(embedding, softly=False), network.quantize(embedding)
    torch.testing.assert_close(passed.reconstruction.view(4, 4, 8).norm(dim=2), torch.ones(4, 4))
    assert torch.equal(passed.logits, passed.embedding_logits)
    assert torch.equal(passed.embedding_logits, soft.embedding_logits)
    assert not torch.equal(passed.logits, soft.logits)
    torch.autograd.backward(passed.logits.square().sum())
    assert network.quantizer.codebooks.grad is None


def test_the_loss_reaches_every_parameter(pixels: torch.Tensor) -> None:
    network = tiny_network("quantizer.kappa=8")
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # timm starts residual branches switched off
    output = network(pixels)
    torch.autograd.backward(output.logits.square().sum())
    silent = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().max() > 0
    ]
    # Batch norm subtracts the mean, so nothing can flow to a bias that only shifts it.
    assert silent in ([], ["transform.bias"])


def test_parameter_groups_cover_everything_once() -> None:
    network = tiny_network()
    groups: list[dict[str, Any]] = network.parameter_groups(0.01, 5.0)
    assert [group["base_rate"] for group in groups] == pytest.approx([0.01, 0.05])
    trunk, head = ([id(p) for p in group["params"]] for group in groups)
    assert sorted(trunk + head) == sorted(id(p) for p in network.parameters())
    assert trunk == [id(p) for p in network.backbone.parameters()]
    assert id(network.quantizer.codebooks) in head


def test_autocast_reaches_the_backbone_but_not_the_head(pixels: torch.Tensor) -> None:
    network = tiny_network().eval()
    seen: list[torch.dtype] = []
    network.pooling.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0].dtype))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        output = network(pixels)
    assert seen == [torch.bfloat16]
    assert output.embedding.dtype == output.logits.dtype == torch.float32
    with torch.no_grad():
        full = network.embed(pixels)
    torch.testing.assert_close(output.embedding, full, rtol=0.1, atol=0.1)


def test_equal_seeds_give_equal_networks() -> None:
    def flat(network: Network) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(flat(tiny_network(seed=3)), flat(tiny_network(seed=3)))
    assert not torch.equal(flat(tiny_network(seed=3)), flat(tiny_network(seed=4)))


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_any_number_of_levels_is_fused(pixels: torch.Tensor, levels: int) -> None:
    rho = ",".join(["2.0"] * levels) if levels > 1 else "2.0"
    network = tiny_network(f"model.levels={levels}", f"model.rho={rho}")
    assert len(network.backbone.channels) == levels
    assert network(pixels).embedding.shape == (4, 32)


def training_set(network: Network, *, epochs: int) -> TrainingSet:
    embeddings = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    return TrainingSet(
        labels=torch.arange(40) % CLASSES,
        num_classes=CLASSES,
        seed=0,
        epochs=epochs,
        embed=lambda: embeddings,
        apply=lambda function: embeddings,
    )


@pytest.mark.parametrize("first", [0, 2])
def test_an_annealed_kappa_falls_by_new_steps_and_is_the_same_after_resuming(first: int) -> None:
    settings = (
        "quantizer.kappa_mode=anneal",
        "quantizer.anneal_share=0.5",
        f"training.codebook_epoch={first}",
    )
    network, epochs = tiny_network(*settings), 8 + first
    data = training_set(network, epochs=epochs)
    seen, changes = [], []
    for epoch in range(epochs):
        changes.append(network.prepare_epoch(epoch, data).new_step)
        seen.append(network.quantizer.kappa)
    assert seen == [8] * (first + 2) + [4] * 2 + [3] * 4  # K = 8, kappa = 3
    # A step is new where kappa falls, and where the codebooks join.
    assert [epoch for epoch in range(1, epochs) if changes[epoch]] == sorted(
        {first, first + 2, first + 4} - {0}
    )
    resumed = tiny_network(*settings)
    resumed.prepare_epoch(epochs - 5, data)
    assert resumed.quantizer.kappa == seen[epochs - 5]


def test_a_fixed_kappa_makes_no_new_steps() -> None:
    network = tiny_network()
    data = training_set(network, epochs=4)
    assert not any(network.prepare_epoch(epoch, data).new_step for epoch in range(4))
    assert network.quantizer.kappa == 3


def test_an_input_aware_network_starts_where_the_fixed_one_does(pixels: torch.Tensor) -> None:
    fixed, aware = tiny_network().eval(), tiny_network("model.rho_mode=input").eval()
    torch.testing.assert_close(aware.embed(pixels), fixed.embed(pixels), rtol=1e-3, atol=1e-4)
    extra = aware.state_dict().keys() - fixed.state_dict().keys()
    assert len(extra) == 6  # a weight and a bias for each of three levels
    assert all(name.startswith("pooling.focus.") for name in extra)
