"""Normalising, rectifying and taking maxima in one is what the three layers do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from phpq.model.stem_pool import NOWHERE, NormReluPool, join_stem, norm_relu_pool

SIZES = [(12, 16), (7, 9), (8, 5), (2, 2), (1, 1)]


def layers(channels: int = 6, pool: nn.Module | None = None, **changes: Any) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels, **changes)
    if norm.affine:
        nn.init.normal_(norm.weight)  # of either sign
        nn.init.normal_(norm.bias)
    return nn.Sequential(norm, nn.ReLU(inplace=True), pool or nn.MaxPool2d(3, 2, 1)).double()


def joined(plain: nn.Module) -> Any:
    other = copy.deepcopy(plain)
    join_stem(other)
    return other


def made_up_maps(*size: int, batch: int = 3, channels: int = 6) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, channels, *size, dtype=torch.float64)


def learned(
    network: Any, maps: Tensor, *, slope_of: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return all that one step leaves behind, from a gradient with the digits of `slope_of`."""
    seen = maps.clone().requires_grad_()
    outputs = network(seen * 1.0)  # rectifying in place may not touch a leaf
    torch.manual_seed(2)
    slope = torch.randn(outputs.shape, dtype=torch.float64).to(slope_of)
    torch.autograd.backward(outputs, slope.to(outputs.dtype))
    assert seen.grad is not None
    norm = network[0]
    return {
        "outputs": outputs.detach(),
        "of maps": seen.grad,
        "of weight": norm.weight.grad,
        "of bias": norm.bias.grad,
        **{name: value.clone() for name, value in network.state_dict().items()},
    }


@pytest.mark.parametrize("size", SIZES)
def test_outputs_gradients_and_statistics_are_those_of_the_layers(size: tuple[int, int]) -> None:
    plain = layers(momentum=0.3, eps=1e-3)
    together = joined(plain)
    assert type(together[0]) is NormReluPool
    maps = made_up_maps(*size)
    expected, got = learned(plain, maps), learned(together, maps)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-7, atol=1e-10, err_msg=name)


def test_in_half_precision_it_is_closer_to_the_truth_than_the_layers() -> None:
    plain = layers(64).float()
    maps = made_up_maps(28, 28, batch=8, channels=64).bfloat16()
    truth = learned(copy.deepcopy(plain).double(), maps.double(), slope_of=torch.bfloat16)
    apart = []
    for network in (plain, joined(plain)):
        got = learned(network, maps, slope_of=torch.bfloat16)
        apart.append({name: (got[name].double() - value).norm() for name, value in truth.items()})
    for name in ("of maps", "of weight", "of bias"):
        assert apart[1][name] < apart[0][name] / 4, name
    # Rounded to bfloat16 once, as the layers do too.
    assert apart[1]["outputs"] <= apart[0]["outputs"] * 1.01


def test_by_plain_loops() -> None:
    maps = made_up_maps(5, 4, batch=2, channels=2)
    weight, bias, mean, factor = torch.randn(4, 2, dtype=torch.float64)
    pooled, best, taps = norm_relu_pool(maps, weight, bias, mean, factor)
    for image in range(2):
        for channel in range(2):
            for row in range(3):
                for column in range(2):
                    values = {}
                    for tap in range(9):
                        y, x = 2 * row - 1 + tap // 3, 2 * column - 1 + tap % 3
                        if 0 <= y < 5 and 0 <= x < 4:
                            value = maps[image, channel, y, x].item()
                            normal = (value - mean[channel].item()) * factor[channel].item()
                            seen = weight[channel].item() * normal + bias[channel].item()
                            values[tap] = (seen, value)
                    tap = max(values, key=lambda tap: values[tap][0])
                    place = (image, channel, row, column)
                    assert pooled[place].item() == pytest.approx(max(0.0, values[tap][0]))
                    assert best[place].item() == values[tap][1]
                    assert taps[place].item() == (tap if values[tap][0] > 0 else NOWHERE)


def test_its_gradient_is_a_gradient() -> None:
    together = joined(layers(2))
    maps = made_up_maps(5, 4, batch=2, channels=2).requires_grad_()
    assert torch.autograd.gradcheck(together, (maps,))


# torch itself looks at gradients that are not there while it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_the_operator_tells_a_compiler_the_truth() -> None:
    for maps in (made_up_maps(6, 5), made_up_maps(6, 5).to(memory_format=torch.channels_last)):
        vectors = torch.randn(4, 6, dtype=torch.float64)
        given = [maps.requires_grad_(), *(v.clone().requires_grad_() for v in vectors[:2])]
        torch.library.opcheck(norm_relu_pool, (*given, *vectors[2:]))


def test_evaluated_it_uses_what_it_has_seen() -> None:
    plain = layers()
    together = joined(plain)
    for seed in range(3):
        torch.manual_seed(seed)
        maps = torch.randn(4, 6, 8, 8, dtype=torch.float64)
        plain(maps), together(maps)
    maps = made_up_maps(7, 6)
    torch.testing.assert_close(together.eval()(maps), plain.eval()(maps))
    assert plain[0].num_batches_tracked == together[0].num_batches_tracked == 3


def test_what_is_no_number_is_passed_on() -> None:
    together = joined(layers())
    maps = made_up_maps(6, 6)
    maps[0, 2, 3, 3] = torch.nan
    pooled = together(maps)
    assert pooled[:, 2].isnan().all()  # as its mean and deviation
    assert not pooled[:, [0, 1, 3, 4, 5]].isnan().any()


@pytest.mark.parametrize(
    "plain",
    [
        layers(pool=nn.MaxPool2d(2, 2)),
        layers(pool=nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
        layers(pool=nn.AvgPool2d(3, 2, 1)),
        layers(affine=False),
        layers(momentum=None),
        layers(track_running_stats=False),
        nn.Sequential(nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(3, 2, 1)),
        nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()),
    ],
)
def test_other_layers_stay_as_they_are(plain: nn.Sequential) -> None:
    assert [type(layer) for layer in joined(plain)] == [type(layer) for layer in plain]


@pytest.mark.parametrize(("levels", "joins"), [((2, 3, 4), True), ((0, 4), False), ((4,), True)])
def test_in_a_network_only_if_nobody_asks_for_what_is_between(
    levels: tuple[int, ...], joins: bool
) -> None:
    plain = timm.create_model("resnet18", features_only=True, out_indices=levels)
    together = joined(plain)
    assert (type(together.bn1) is NormReluPool) is joins
    assert list(together.state_dict()) == list(plain.state_dict())
    images = torch.rand(2, 3, 64, 64)
    for expected, got in zip(plain(images), together(images), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
