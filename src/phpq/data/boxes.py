"""A box drawn on a photo in, the part of the photo that is encoded out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from phpq.data.decode import MAX_PIXELS, read_image
from phpq.errors import ConfigError

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the upright image
_EXAMPLE = "as in 40,20,200,180"


def read_box(text: str) -> Box:
    """Read x0,y0,x1,y1; a `ConfigError` if these are not four numbers."""
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"The box {text[:80]!r} cannot be read: give four numbers, x0,y0,x1,y1, {_EXAMPLE}."
        ) from error
    return left, top, right, bottom


def cut_out(
    source: Path | bytes | Image.Image,
    box: Box,
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """Crop an image to a box, in whole pixels.

    The box is (left, top, right, bottom) in pixels of the upright image. The crop is encoded like
    any photo: a model with `data.fit=crop` sees the square at its centre.
    """
    image = source
    if not isinstance(image, Image.Image):
        image = read_image(image, name=name, max_pixels=max_pixels)
    left, top, right, bottom = check_box(box, image.size)
    return image.crop((math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)))


def check_box(box: Sequence[float], size: tuple[int, int]) -> Box:
    """Return a box that lies in an image of (width, height), or raise a `ConfigError`."""
    shown = ",".join(f"{edge:g}" for edge in box)
    if len(box) != 4 or not all(math.isfinite(edge) for edge in box):
        raise ConfigError(f"The box {shown} is not allowed: give x0,y0,x1,y1, {_EXAMPLE}.")
    left, top, right, bottom = box
    if right - left < 1 or bottom - top < 1:
        raise ConfigError(
            f"The box {shown} is empty: the right edge must be at least one pixel behind the left, "
            f"and the lower edge below the upper, {_EXAMPLE}."
        )
    if left < 0 or top < 0 or right > size[0] or bottom > size[1]:
        raise ConfigError(
            f"The box {shown} is not inside the photo, which has {size[0]} x {size[1]} pixels: "
            f"x0 and x1 are 0 to {size[0]}, y0 and y1 are 0 to {size[1]}."
        )
    return left, top, right, bottom
