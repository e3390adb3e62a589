from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from phpq.explain.alignment import _MEASURED, cell_offsets, lay_out
from phpq.model.backbone import Backbone


class Strides(nn.Module):
    """Three levels of box filters with stride 2."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.feature_info = SimpleNamespace(channels=lambda: [3, 3, 3])
        self.filter = nn.Conv2d(3, 3, kernel, stride=2, padding=padding, groups=3)
        nn.init.constant_(self.filter.weight, 1 / kernel**2)

    def forward(self, images: Tensor) -> list[Tensor]:
        first = self.filter(images)
        second = self.filter(first)
        return [first, second, self.filter(second)]


def test_padded_strides_look_at_the_first_pixel_and_patches_at_their_middle() -> None:
    padded = cell_offsets(Backbone(Strides(3, 1), 3))
    assert padded == pytest.approx((1 / 4, 1 / 8, 1 / 16), abs=1e-3)  # the first of 2, 4, 8 pixels
    patches = cell_offsets(Backbone(Strides(2, 0), 3))
    assert patches == pytest.approx((0.5, 0.5, 0.5), abs=1e-3)


def test_the_answer_is_kept_with_the_backbone_and_no_longer() -> None:
    one = Backbone(Strides(3, 1), 3)
    before = torch.random.get_rng_state()
    offsets = cell_offsets(one)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert cell_offsets(one) is offsets
    kept = len(_MEASURED)
    del one
    gc.collect()
    assert len(_MEASURED) < kept


def test_an_offset_of_a_half_is_what_resizing_does() -> None:
    values = np.random.default_rng(0).random((4, 6)).astype(np.float32)
    drawn = lay_out(values, (32, 96), offset=0.5)
    resized = Image.fromarray(values).resize((96, 32), Image.Resampling.BILINEAR)
    assert drawn.dtype == np.float32
    assert drawn == pytest.approx(np.asarray(resized), abs=1e-5)


def test_cells_are_drawn_where_they_look() -> None:
    values = np.zeros((8, 8), np.float32)
    values[2, 5] = 1
    for offset in (0.0, 0.25, 0.5):
        drawn = lay_out(values, (64, 64), offset=offset)
        y, x = (np.average(np.arange(64) + 0.5, weights=drawn.sum(axis=a)) for a in (1, 0))
        assert y == pytest.approx(8 * 2 + 8 * offset, abs=0.1)
        assert x == pytest.approx(8 * 5 + 8 * offset, abs=0.1)


def test_a_constant_stays_constant_at_any_size() -> None:
    for cells, pixels in ((1, 7), (3, 5), (6, 4), (2, 1)):
        drawn = lay_out(np.full((cells, cells), 2.0, np.float32), (pixels, 9), offset=0.3)
        assert drawn == pytest.approx(np.full((pixels, 9), 2.0))
