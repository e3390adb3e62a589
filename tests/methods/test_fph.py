"""FPH: which stages enter the code, and how."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phpq.errors import ConfigError
from phpq.methods.fph import FPH
from tiny_hashing import BITS, tiny_method
from tiny_runs import SIDE


def fph() -> FPH:
    method = tiny_method("fph")
    assert isinstance(method, FPH)
    return method


def made_up_pyramid(method: FPH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sides = (8, 4, 2, 1)
    return [
        torch.rand(3, channels, side, side, generator=generator)
        for channels, side in zip(method.backbone.channels, sides, strict=True)
    ]


def test_the_code_is_the_sum_of_both_pyramids() -> None:
    method = fph().eval()
    images = torch.rand(2, 3, SIDE, SIDE)
    pyramid = method.backbone(images)
    assert len(pyramid) == 4
    vertical = method.hash(method.describe(pyramid))
    wanted = method.squash(vertical + method.structure(pyramid))
    torch.testing.assert_close(method.extract(images), wanted)


def test_the_vertical_pyramid_adds_up_the_pooled_high_stages() -> None:
    method = fph()
    pyramid = made_up_pyramid(method)
    third, fourth = method.vertical
    wanted = third(pyramid[2].mean((2, 3))) + fourth(pyramid[3].mean((2, 3)))
    torch.testing.assert_close(method.describe(pyramid), wanted)


def test_the_horizontal_pyramid_keeps_the_layout_of_low_stages() -> None:
    method = fph()
    pyramid = made_up_pyramid(method)
    outputs = method.structure(pyramid)
    assert outputs.shape == (3, BITS)
    votes = []
    for layer, stage in zip(method.horizontal, pyramid[:2], strict=True):
        half = stage.shape[-1] // 2
        cells = [
            stage[:, :, rows, columns].mean((2, 3))
            for rows in (slice(0, half), slice(half, None))
            for columns in (slice(0, half), slice(half, None))
        ]
        votes.append(layer(torch.stack(cells, 2).flatten(1)).tanh())
    torch.testing.assert_close(outputs, (votes[0] + votes[1]) / 2)
    mirrored = method.structure([stage.flip(-1) for stage in pyramid])
    assert not torch.allclose(mirrored, outputs)
    # The high stages have no layout: their mirror image is the same.
    flipped = method.describe([stage.flip(-1) for stage in pyramid])
    torch.testing.assert_close(flipped, method.describe(pyramid))


def test_bad_options_name_the_method() -> None:
    with pytest.raises(ConfigError, match=r"triplet=-1.* of 'fph' must be 0 or more"):
        tiny_method("fph", "method.options.triplet=-1")
