"""Generalized spatial pooling and the pyramid fusion against plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import pytest
import torch

from phpq.model.pooling import (
    FocusPredictor,
    PyramidHybridPooling,
    centre_weights,
    generalized_spatial_pooling,
    pooling_by_image,
)
from reference import fusion_loop, gsp_gradient_loop, gsp_loop

Kind = Literal["gem", "paper"]


def positive_maps(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) + 0.05


@pytest.mark.parametrize("kind", ["gem", "paper"])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0, 7.0, math.inf])
def test_pooling_equals_its_twin(rho: float, kind: Kind) -> None:
    maps = positive_maps(2, 3, 4, 5)
    pooled = generalized_spatial_pooling(maps, rho, kind=kind)
    assert pooled.shape == (2, 3)
    for image in range(2):
        for channel in range(3):
            expected = gsp_loop(maps[image, channel].tolist(), rho, kind=kind)
            assert pooled[image, channel].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rho", [1.0, 2.0, 3.0])
def test_gradient_is_the_papers(rho: float) -> None:
    maps = positive_maps(1, 1, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(generalized_spatial_pooling(maps, rho, kind="paper"), maps)
    expected = torch.tensor(gsp_gradient_loop(maps[0, 0].tolist(), rho))
    torch.testing.assert_close(gradient[0, 0], expected, rtol=1e-5, atol=1e-7)


def test_both_limits_are_exact_for_any_sign() -> None:
    maps = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(generalized_spatial_pooling(maps, 1.0), maps.flatten(2).mean(2))
    assert torch.equal(generalized_spatial_pooling(maps, math.inf), maps.amax((2, 3)))


@pytest.mark.parametrize("rho", [1.0, 3.0])
def test_weighted_places_count_as_often(rho: float) -> None:
    maps, times = torch.rand(2, 3, 2, 2), torch.tensor([1, 2, 3, 0])
    repeated = maps.flatten(2).repeat_interleave(times, dim=2)[:, :, None]
    pooled = generalized_spatial_pooling(maps, rho, weights=times / times.sum())
    torch.testing.assert_close(pooled, generalized_spatial_pooling(repeated, rho))


def test_autocast_does_not_round_weighted_means() -> None:
    maps, weights = positive_maps(2, 3, 4, 4), centre_weights(4, 4, 0.7)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = generalized_spatial_pooling(maps, 3.0, weights=weights)
    torch.testing.assert_close(pooled, generalized_spatial_pooling(maps, 3.0, weights=weights))


def test_weights_around_the_centre_are_those_of_plain_loops() -> None:
    expected = np.zeros((3, 4))
    for row in range(3):
        for column in range(4):
            down, right = (row + 0.5) / 1.5 - 1, (column + 0.5) / 2 - 1
            expected[row, column] = math.exp(-(down**2 + right**2) / (2 * 0.7**2))
    expected /= expected.sum()
    np.testing.assert_allclose(centre_weights(3, 4, 0.7), expected.ravel(), rtol=1e-5)
    assert centre_weights(1, 1, 0.7).tolist() == [1.0]
    torch.testing.assert_close(centre_weights(2, 5, math.inf), torch.full((10,), 0.1))


def test_larger_focus_moves_from_the_mean_to_the_maximum() -> None:
    maps = positive_maps(1, 4, 6, 6)
    rising = [generalized_spatial_pooling(maps, rho) for rho in (1.0, 2.0, 3.0, 10.0, 60.0)]
    for lower, higher in itertools.pairwise(rising):
        assert (higher > lower).all()
    maximum = generalized_spatial_pooling(maps, math.inf)
    assert (rising[-1] < maximum).all()
    torch.testing.assert_close(rising[-1], maximum, rtol=0.07, atol=0)


@pytest.mark.parametrize(("side", "rho", "shrink"), [(28, 3.0, 0.0118), (14, 2.0, 0.0714)])
def test_the_printed_form_shrinks_as_computed(side: int, rho: float, shrink: float) -> None:
    maps = positive_maps(1, 1, side, side)
    gem = generalized_spatial_pooling(maps, rho)
    paper = generalized_spatial_pooling(maps, rho, kind="paper")
    assert (paper / gem).item() == pytest.approx(shrink, rel=0.01)


@pytest.mark.parametrize("kind", ["gem", "paper"])
@pytest.mark.parametrize("rho", [1.0, 2.0, 3.0, math.inf])
def test_dead_channels_have_finite_gradients(rho: float, kind: Kind) -> None:
    maps = torch.zeros(1, 2, 3, 3, requires_grad=True)
    pooled = generalized_spatial_pooling(maps, rho, kind=kind)
    assert pooled.abs().max() < 1e-5
    (gradient,) = torch.autograd.grad(pooled.sum(), maps)
    assert gradient.isfinite().all()


def test_half_precision_maps_are_pooled_in_float32() -> None:
    maps = (positive_maps(1, 2, 16, 16) * 40).bfloat16()  # cubes overflow float16
    pooled = generalized_spatial_pooling(maps, 3.0)
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled, generalized_spatial_pooling(maps.float(), 3.0))


def layers_of(pooling: PyramidHybridPooling) -> list[tuple[list[list[float]], list[float]]]:
    layers = []
    for step in pooling.steps:
        assert isinstance(step, torch.nn.Linear)
        layers.append((step.weight.tolist(), step.bias.tolist()))
    return layers


@pytest.mark.parametrize(
    ("channels", "rho"),
    [((4, 6, 5), (3.0, 2.0, 1.0)), ((4, 6), (2.0, math.inf)), ((3,), (1.0,))],
)
@pytest.mark.parametrize("kind", ["gem", "paper"])
def test_fusion_equals_its_twin(
    channels: tuple[int, ...], rho: tuple[float, ...], kind: Kind
) -> None:
    torch.manual_seed(0)
    pooling = PyramidHybridPooling(channels, rho, kind=kind)
    pyramid = [positive_maps(2, c, 8 >> i, 8 >> i, seed=i) for i, c in enumerate(channels)]
    fused = pooling(pyramid)
    assert fused.shape == (2, channels[-1])
    for image in range(2):
        pooled = [
            [gsp_loop(channel.tolist(), focus, kind=kind) for channel in level[image]]
            for level, focus in zip(pyramid, rho, strict=True)
        ]
        expected = fusion_loop(pooled, layers_of(pooling))
        torch.testing.assert_close(fused[image], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_every_level_receives_a_gradient() -> None:
    pooling = PyramidHybridPooling((4, 6, 5), (3.0, 2.0, 1.0))
    pyramid = [positive_maps(2, c, 4, 4).requires_grad_() for c in (4, 6, 5)]
    for gradient in torch.autograd.grad(pooling(pyramid).square().sum(), pyramid):
        assert gradient.abs().max() > 0


def test_a_pyramid_of_another_height_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        PyramidHybridPooling((4, 6), (2.0, 1.0))([positive_maps(1, 4, 2, 2)])


@pytest.mark.parametrize("kind", ["gem", "paper"])
def test_pooling_by_image_equals_its_twin(kind: Kind) -> None:
    maps, rho = positive_maps(5, 3, 4, 5), [1.0, 1.5, 2.0, 3.0, 7.0]
    pooled = pooling_by_image(maps, torch.tensor(rho), kind=kind)
    for image, focus in enumerate(rho):
        for channel in range(3):
            expected = gsp_loop(maps[image, channel].tolist(), focus, kind=kind)
            assert pooled[image, channel].item() == pytest.approx(expected, rel=1e-5)


def test_pooling_by_image_has_the_right_slopes() -> None:
    maps = positive_maps(2, 2, 3, 3).double().requires_grad_()
    rho = torch.tensor([1.0, 2.5], dtype=torch.float64, requires_grad=True)

    def pool(focus: torch.Tensor) -> torch.Tensor:
        return pooling_by_image(maps, focus)

    (slope,) = torch.autograd.grad(pool(rho).sum(), rho)
    # Pooled in float32 inside, so that the step must be large.
    step = 1e-2
    for image in range(2):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[image] = step
        rise = (pool(rho + shift) - pool(rho - shift)).sum().item()
        assert slope[image].item() == pytest.approx(rise / (2 * step), rel=2e-3)
        assert slope[image] > 0  # power means grow with their exponent
    (by_image,) = torch.autograd.grad(pool(rho)[1].sum(), maps)
    (alone,) = torch.autograd.grad(generalized_spatial_pooling(maps, 2.5)[1].sum(), maps)
    torch.testing.assert_close(by_image, alone, rtol=1e-4, atol=1e-6)


def test_any_predicted_focus_stays_finite() -> None:
    maps = (300 * positive_maps(3, 2, 4, 4)).requires_grad_()
    rho = torch.tensor([1.0, 40.0, 5000.0], requires_grad=True)
    pooled = pooling_by_image(maps, rho)  # 300^40 is beyond float32
    torch.testing.assert_close(pooled[2], maps[2].amax((1, 2)), rtol=1e-2, atol=0)
    for gradient in torch.autograd.grad(pooled.sum(), (maps, rho)):
        assert gradient.isfinite().all()
    dead = torch.zeros(1, 2, 3, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(pooling_by_image(dead, torch.ones(1)).sum(), dead)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("start", [1.0, 2.0, 3.0])
def test_predictions_start_at_the_fixed_focus_and_can_move(start: float) -> None:
    predict = FocusPredictor(4, start)
    maps = positive_maps(3, 4, 5, 5)
    rho = predict(maps)
    assert rho.tolist() == [start] * 3
    # At rho = 1 the limit holds, but a step upwards must not be blocked.
    parameters = (predict.weight, predict.bias)
    weight, bias = torch.autograd.grad(pooling_by_image(maps, rho).sum(), parameters)
    assert weight.abs().max() > 0
    assert bias > 0


def test_predictions_equal_their_twin_and_never_fall_below_one() -> None:
    scales = torch.tensor([[1, 2, 3], [3, 1, 1], [5, 1, 0], [0, 1, 5], [1, 0, 0], [2, 2, 1]])
    predict, maps = FocusPredictor(3, 1.5), positive_maps(6, 3, 4, 4) * scales[:, :, None, None]
    with torch.no_grad():
        predict.weight.copy_(torch.tensor([3.0, -2.0, -1.5]))
        predict.bias.fill_(-0.3)
    seen = predict(maps).tolist()
    for image in range(6):
        means = [sum(map(sum, c)) / 16 for c in maps[image].tolist()]
        length = math.sqrt(sum(mean * mean for mean in means))
        shift = sum(w * mean / length for w, mean in zip((3, -2, -1.5), means, strict=True))
        assert seen[image] == pytest.approx(max(1.0, 1.5 + shift - 0.3), abs=1e-5)
    assert min(seen) == 1.0 < max(seen)  # both sides of the limit occur


@pytest.mark.parametrize("kind", ["gem", "paper"])
def test_input_aware_fusion_starts_as_the_fixed_one(kind: Kind) -> None:
    channels, rho = (4, 6, 5), (3.0, 2.0, 1.0)
    torch.manual_seed(0)
    fixed = PyramidHybridPooling(channels, rho, kind=kind)
    after_fixed = torch.rand(1)
    torch.manual_seed(0)
    aware = PyramidHybridPooling(channels, rho, kind=kind, mode="input")
    assert torch.equal(torch.rand(1), after_fixed)  # equal seeds give equal networks
    pyramid = [positive_maps(2, c, 8 >> i, 8 >> i, seed=i) for i, c in enumerate(channels)]
    torch.testing.assert_close(aware(pyramid), fixed(pyramid), rtol=1e-5, atol=1e-6)
    assert not [name for name in fixed.state_dict() if "focus" in name]
    torch.autograd.backward(aware(pyramid).square().sum())
    for name, parameter in aware.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
