"""Which part of a photo to search with: its own heat map in, a box out.

The box holds the most heat above HOTTER times the mean heat of the photo: every place that is
cooler costs it as much as it lacks. There is one best box, found exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from phpq.codes import FloatArray
from phpq.data.boxes import Box
from phpq.errors import ConfigError
from phpq.explain.heatmap import heat_map, heat_missing, lay_out

if TYPE_CHECKING:
    from phpq.model import Model

HOTTER = 1.25  # than the mean: what a place must be to belong to the box
CELLS = 32  # along a side: feature maps are no finer


def suggest_box(model: Model, image: str | Path | Image.Image) -> Box:
    """Return the part of a photo that its code rests upon: (left, top, right, bottom) in pixels.

    Needs torch and the weights, as heat maps do: a `ConfigError` without.
    """
    from phpq.data import read_image

    if missing := heat_missing(model):
        raise ConfigError(f"No box can be suggested here. {missing}")
    if not isinstance(image, Image.Image):
        image = read_image(Path(image), max_pixels=model.card.config.data.max_pixels)
    left, top, right, bottom = hottest_box(heat_map(model, image))
    return left * image.width, top * image.height, right * image.width, bottom * image.height


def hottest_box(heat: FloatArray, *, hotter: float = HOTTER) -> Box:
    """Return the box on a heat map (h, w) with the most heat above `hotter` times its mean.

    As shares of the sides: (left, top, right, bottom) from 0 to 1; all of it, if nothing is hot.
    """
    small = lay_out(_blurred(heat), (CELLS, CELLS), offset=0.5).astype(np.float64)
    above = small - hotter * small.mean()
    sums = np.zeros((CELLS + 1, CELLS + 1))
    sums[1:, 1:] = above.cumsum(axis=0).cumsum(axis=1)
    tops, bottoms = np.triu_indices(CELLS + 1, k=1)
    columns = sums[bottoms] - sums[tops]  # of each pair of rows: sums from the left edge on
    gains = columns - np.minimum.accumulate(columns, axis=1)
    pair, right = divmod(int(gains.argmax()), CELLS + 1)
    if gains[pair, right] <= 0:
        return 0.0, 0.0, 1.0, 1.0
    left = int(columns[pair, : right + 1].argmin())
    return left / CELLS, int(tops[pair]) / CELLS, right / CELLS, int(bottoms[pair]) / CELLS


def _blurred(heat: FloatArray) -> FloatArray:
    """Return the means over cells of a map that has more places than there are cells."""
    rows, columns = (np.linspace(0, side, min(side, CELLS) + 1).astype(int) for side in heat.shape)
    sums = np.add.reduceat(np.add.reduceat(heat, rows[:-1], axis=0), columns[:-1], axis=1)
    return np.asarray(sums / np.outer(np.diff(rows), np.diff(columns)), np.float32)
