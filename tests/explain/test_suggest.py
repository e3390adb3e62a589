from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from phpq.codes import FloatArray
from phpq.errors import ConfigError
from phpq.explain import hottest_box, suggest, suggest_box
from phpq.explain.suggest import CELLS
from phpq.model import TorchModel
from served_galleries import tiny_model


def best_by_hand(cells: FloatArray, hotter: float) -> float:
    """Return the most heat above the limit of any box, by plain loops over sums."""
    above = cells.astype(np.float64) - hotter * cells.astype(np.float64).mean()
    side = len(above)
    best = 0.0
    for top in range(side):
        for bottom in range(top + 1, side + 1):
            run = 0.0
            for value in above[top:bottom].sum(axis=0):
                run = max(0.0, run + float(value))
                best = max(best, run)
    return best


@pytest.mark.parametrize("hotter", [1.0, 1.75])
def test_no_box_holds_more_heat(hotter: float) -> None:
    for seed in range(2):
        heat = np.random.default_rng(seed).random((CELLS, CELLS)).astype(np.float32) ** 4
        left, top, right, bottom = (
            round(CELLS * edge) for edge in hottest_box(heat, hotter=hotter)
        )
        inside = heat[top:bottom, left:right].astype(np.float64)
        gain = float((inside - hotter * heat.astype(np.float64).mean()).sum())
        assert gain == pytest.approx(best_by_hand(heat, hotter), rel=1e-5)


def test_a_hot_place_is_found_on_maps_of_any_size() -> None:
    for height, width in ((64, 64), (300, 512), (320, 256), (8, 8)):
        heat = np.full((height, width), 0.05, np.float32)
        heat[height // 4 : height // 2, width // 2 : 3 * width // 4] = 1
        assert hottest_box(heat) == pytest.approx((0.5, 0.25, 0.75, 0.5), abs=1.1 / min(heat.shape))
    assert hottest_box(np.ones((10, 10), np.float32)) == (0, 0, 1, 1)
    assert hottest_box(np.zeros((10, 10), np.float32)) == (0, 0, 1, 1)


def test_the_box_of_a_photo_is_in_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_hot(model: TorchModel, image: Image.Image) -> FloatArray:
        heat = np.full((32, 64), 0.01, np.float32)
        heat[:, 32:] = 1
        return heat

    monkeypatch.setattr(suggest, "heat_map", half_hot)
    assert suggest_box(tiny_model(), Image.new("RGB", (200, 100))) == (100, 0, 200, 100)


def test_a_photo_of_a_real_model_gets_a_box_inside() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    left, top, right, bottom = suggest_box(tiny_model(), image)
    assert 0 <= left < right <= 60
    assert 0 <= top < bottom <= 40


def test_without_heat_maps_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "heat_missing", lambda model: "Heat maps need torch.")
    with pytest.raises(ConfigError, match=r"No box can be suggested here\. Heat maps need torch"):
        suggest_box(tiny_model(), Image.new("RGB", (8, 8)))
