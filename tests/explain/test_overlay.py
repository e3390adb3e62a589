from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.explain import overlay_png


def read(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image


@pytest.mark.parametrize(
    ("size", "drawn"),
    [((800, 400), (384, 192)), ((40, 60), (256, 384)), ((1, 3000), (1, 384))],
)
def test_the_image_keeps_its_shape(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    image = read(overlay_png(Image.new("RGB", size), np.zeros((7, 5), np.float32)))
    assert image.size == drawn


def test_hot_places_shine_and_cold_ones_show_the_image() -> None:
    heat = np.zeros((8, 8), np.float32)
    heat[:, 4:] = 1
    shown = np.asarray(read(overlay_png(Image.new("RGB", (64, 64), (0, 120, 255)), heat)), float)
    cold, hot = shown[192, 30], shown[192, 350]
    assert cold[2] > cold[0] + 100  # still blue
    assert hot[0] > 150  # yellow over it
    assert hot.sum() > cold.sum()


def test_more_heat_is_brighter() -> None:
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None].repeat(64, axis=0)
    shown = np.asarray(read(overlay_png(Image.new("RGB", (64, 64), (90, 90, 90)), ramp)), float)
    assert (np.diff(shown[200, 20:-20:24].sum(axis=1)) > 0).all()


def test_other_modes_are_converted() -> None:
    for mode in ("L", "RGBA", "P"):
        assert read(overlay_png(Image.new(mode, (20, 20)), np.ones((4, 4), np.float32)))


def test_a_map_of_another_shape_is_refused() -> None:
    for shape in ((4,), (1, 4, 4), (0, 4)):
        with pytest.raises(ShapeError, match="heat_map"):
            overlay_png(Image.new("RGB", (8, 8)), np.zeros(shape, np.float32))
