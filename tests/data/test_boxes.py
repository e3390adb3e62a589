from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phpq.data.boxes import check_box, cut_out, read_box
from phpq.errors import BadImageError, ConfigError


def numbered(width: int, height: int) -> Image.Image:
    """Return an image whose red is the column and whose green is the row of a pixel."""
    rows, columns = np.indices((height, width))
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


def seen(image: Image.Image) -> tuple[int, int, int, int]:
    """Return where in `numbered` a part was cut out."""
    pixels = np.asarray(image)
    return (
        int(pixels[0, 0, 0]),
        int(pixels[0, 0, 1]),
        int(pixels[-1, -1, 0]) + 1,
        int(pixels[-1, -1, 1]) + 1,
    )


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((10, 20, 30, 50), (10, 20, 30, 50)),
        ((10.6, 20.2, 29.1, 49.5), (10, 20, 30, 50)),  # no pixel of it is lost
        ((0, 0, 100, 60), (0, 0, 100, 60)),
    ],
)
def test_what_is_around_a_box_is_left_out(
    box: tuple[float, float, float, float], expected: tuple[int, int, int, int]
) -> None:
    assert seen(cut_out(numbered(100, 60), box)) == expected


def test_a_photo_is_upright_before_it_is_cut(tmp_path: Path) -> None:
    turned = numbered(100, 60).transpose(Image.Transpose.ROTATE_90)  # stored on its side
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn it by 90 degrees clockwise"
    turned.save(tmp_path / "a.png", exif=exif)
    assert seen(cut_out(tmp_path / "a.png", (10, 20, 30, 40))) == (10, 20, 30, 40)
    with pytest.raises(BadImageError, match="no such file"):
        cut_out(tmp_path / "b.png", (0, 0, 1, 1))
    with pytest.raises(BadImageError, match="more than the limit of 100"):
        cut_out(tmp_path / "a.png", (0, 0, 1, 1), max_pixels=100)


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ((10, 10, 10, 20), "is empty"),
        ((20, 10, 10, 20), "is empty"),
        ((-1, 0, 10, 10), "not inside the photo, which has 100 x 60 pixels"),
        ((0, 0, 101, 10), "not inside"),
        ((0, 0, 10, 60.5), "not inside"),
        ((0, 0, math.nan, 10), "not allowed"),
        ((0, 0, math.inf, 10), "not allowed"),
        ((0, 0, 10), "not allowed"),
    ],
)
def test_a_box_that_cannot_be_is_refused(box: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_box(box, (100, 60))


def test_boxes_are_read_from_text() -> None:
    assert read_box("1,2.5, 30,40") == (1.0, 2.5, 30.0, 40.0)
    for text in ("", "1,2,3", "1,2,3,4,5", "a,b,c,d"):
        with pytest.raises(ConfigError, match="cannot be read: give four numbers"):
            read_box(text)
