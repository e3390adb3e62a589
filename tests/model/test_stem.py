"""The folded first convolution is the plain one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from phpq.model.stem import FoldedStem, fold_stem, folded_weight


def stem(**changes: object) -> nn.Conv2d:
    settings: dict[str, object] = {"kernel_size": 7, "stride": 2, "padding": 3, "bias": False}
    torch.manual_seed(0)
    return nn.Conv2d(3, 6, **{**settings, **changes}).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(32, 32), (18, 40), (2, 2), (17, 32), (32, 17), (1, 1)])
def test_outputs_and_gradients_are_those_of_the_plain_one(size: tuple[int, int]) -> None:
    plain = stem()
    folded = copy.deepcopy(plain)
    fold_stem(folded)
    assert type(folded) is FoldedStem
    images = torch.rand(2, 3, *size, dtype=torch.float64)
    slope = torch.rand_like(plain(images))
    results = []
    for layer in (plain, folded):
        seen = images.clone().requires_grad_()
        outputs = layer(seen)
        torch.autograd.backward(outputs, slope)
        assert layer.weight.grad is not None
        assert seen.grad is not None
        results.append((outputs.detach(), seen.grad, layer.weight.grad))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_every_weight_has_its_place() -> None:
    weight = torch.arange(2 * 3 * 7 * 7, dtype=torch.float64).view(2, 3, 7, 7)
    folded = folded_weight(weight)
    assert folded.shape == (2, 12, 4, 4)
    for channel in range(3):
        for row in range(8):
            for column in range(8):
                place = channel * 4 + (row % 2) * 2 + column % 2
                expected = 0.0
                if row and column:
                    expected = weight[1, channel, row - 1, column - 1].item()
                assert folded[1, place, row // 2, column // 2].item() == expected


def test_weights_keep_their_names() -> None:
    network = nn.Sequential(stem(), nn.ReLU())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fold_stem(network)
    assert type(network[0]) is FoldedStem
    after = network.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_size": 3, "padding": 1},
        {"stride": 1},
        {"padding": 2},
        {"dilation": 2},
        {"groups": 3},
        {"padding_mode": "reflect"},
        {"bias": True},
    ],
)
def test_other_convolutions_stay(changes: dict[str, object]) -> None:
    layer = stem(**changes)
    fold_stem(layer)
    assert type(layer) is nn.Conv2d
