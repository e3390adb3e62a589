"""SRLH: squares from maps, crops of squares, and a trunk that crops do not unsettle."""

from __future__ import annotations

import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.srlh import SRLH, cut_out, square_of
from tiny_hashing import BITS, random_batch, tiny_method
from tiny_runs import SIDE


def srlh(*assignments: str) -> SRLH:
    method = tiny_method("srlh", *assignments)
    assert isinstance(method, SRLH)
    return method


@pytest.mark.parametrize("side", [1, 2, 7])
def test_a_flat_map_is_the_whole_image_at_any_size(side: int) -> None:
    square = square_of(torch.zeros(1, 1, side, side), 0.3)
    torch.testing.assert_close(square, torch.tensor([[0.0, 0.0, 1.0]]))


def test_the_square_has_the_mean_and_the_spread_of_the_map() -> None:
    scores = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    total = sum(math.exp(value) for value in scores.flatten().tolist())
    centres = [-0.8, -0.4, 0.0, 0.4, 0.8]
    mean_x = mean_y = square_x = square_y = 0.0
    for row, y in enumerate(centres):
        for column, x in enumerate(centres):
            share = math.exp(scores[0, 0, row, column].item()) / total
            mean_x, mean_y = mean_x + share * x, mean_y + share * y
            # Uniform within its cell of side 0.4.
            square_x += share * (x * x + 0.4**2 / 12)
            square_y += share * (y * y + 0.4**2 / 12)
    variance = (square_x - mean_x**2 + square_y - mean_y**2) / 2
    half = min(math.sqrt(3 * variance), 1)
    room = 1 - half
    wanted = [max(-room, min(room, mean_x)), max(-room, min(room, mean_y)), half]
    assert square_of(scores, 0.1)[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_peak_is_a_small_square_that_stays_inside() -> None:
    scores = torch.full((1, 1, 7, 7), -50.0)
    scores[0, 0, 0, 6] = 50.0  # top right
    x, y, half = square_of(scores, 0.35)[0].tolist()
    assert (x, y, half) == pytest.approx((0.65, -0.65, 0.35))


def test_the_whole_image_is_halved_by_averages() -> None:
    images = torch.rand(2, 3, 8, 8)
    crops = cut_out(images, torch.tensor([[0.0, 0.0, 1.0]] * 2))
    torch.testing.assert_close(crops, torch.nn.functional.avg_pool2d(images, 2))


def test_a_quarter_is_cut_out_as_it_is() -> None:
    images = torch.rand(1, 3, 8, 8)
    crops = cut_out(images, torch.tensor([[0.5, -0.5, 0.5]]))  # top right
    torch.testing.assert_close(crops, images[:, :, :4, 4:])


def test_the_loss_of_the_code_moves_the_squares() -> None:
    method = srlh().train()
    torch.nn.init.normal_(method.hash.weight, std=0.3)
    _, labels = random_batch()
    images = torch.rand(len(labels), 3, SIDE, SIDE)
    learned = method.objective(method.extract(images), labels, torch.arange(len(labels)))
    torch.autograd.backward(learned.loss)
    for finder in method.finders:
        assert isinstance(finder, torch.nn.Conv2d)
        slope = finder.weight.grad
        assert slope is not None
        assert torch.isfinite(slope).all()
    # Stage 4 of so small an image is one place: its square is the whole image, and cannot move.
    first = method.finders[0].weight.grad
    assert isinstance(first, torch.Tensor)
    assert first.abs().max() > 0


def test_crops_leave_the_statistics_of_whole_images_alone() -> None:
    method = srlh().train()
    images = torch.rand(4, 3, SIDE, SIDE)
    method.extract(images)
    assert method.backbone.training
    counters = {
        int(value)
        for name, value in method.backbone.state_dict().items()
        if name.endswith("num_batches_tracked")
    }
    assert counters == {1}  # one pass of three
    method.eval().extract(images)
    assert not method.backbone.training


def test_the_code_sees_the_image_and_its_regions() -> None:
    method = srlh().eval()
    images = torch.rand(2, 3, SIDE, SIDE)
    with torch.no_grad():
        outputs = method.extract(images)
        pyramid = method.backbone(images)
        views = [pyramid] + [
            method.backbone(cut_out(images, square)) for square in method.regions(pyramid)
        ]
        pooled = torch.cat([view[-1].mean((2, 3)) for view in views], 1)
        torch.testing.assert_close(outputs, method.squash(method.hash(pooled)))
    assert outputs.shape == (2, BITS)


@pytest.mark.parametrize("smallest", ["0", "1.5"])
def test_bad_options_are_refused(smallest: str) -> None:
    with pytest.raises(ConfigError, match=r"smallest=.* of 'srlh' must be in \(0, 1\]"):
        tiny_method("srlh", f"method.options.smallest={smallest}")


def test_options_of_the_loss_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"quantization=-1.* of 'srlh'"):
        tiny_method("srlh", "method.options.quantization=-1")
