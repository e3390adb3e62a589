"""A heat map laid over its image: an image and a map in [0, 1] in, a PNG out."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from phpq.codes import FloatArray
from phpq.errors import ShapeError

LONGEST_SIDE = 384  # pixels
# From cold to hot: ever brighter, so that it can be read without telling colours apart.
_RAMP = ((12, 8, 38), (92, 24, 110), (190, 58, 84), (248, 142, 20), (252, 250, 160))
_COLD, _HOT = 0.25, 0.7  # how much of the ramp covers the image


def overlay_png(image: Image.Image, heat: FloatArray) -> bytes:
    """Draw a heat map over its image.

    Args:
        image: Upright and in mode RGB, as `read_image` gives it.
        heat: (h, w) float in [0, 1] over the whole image, from `heat_map`.

    Returns:
        A PNG with the aspect ratio of the image and a longest side of 384 pixels; a smaller image
        is enlarged, or a phone would show the map in blocks.
    """
    if not isinstance(heat, np.ndarray) or heat.ndim != 2 or not heat.size:
        raise ShapeError(f"heat has shape {np.shape(heat)}; expected (h, w), from `heat_map`.")
    factor = LONGEST_SIDE / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    smooth = Image.fromarray(np.ascontiguousarray(heat, np.float32))
    values = np.asarray(smooth.resize(size, Image.Resampling.BILINEAR)).clip(0, 1)  # (h, w)
    stops = np.linspace(0, 1, len(_RAMP))
    colour = np.stack([np.interp(values, stops, channel) for channel in zip(*_RAMP, strict=True)])
    cover = _COLD + (_HOT - _COLD) * values[..., None]
    mixed = np.asarray(small) * (1 - cover) + colour.transpose(1, 2, 0) * cover
    stream = io.BytesIO()
    Image.fromarray(mixed.round().astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()
