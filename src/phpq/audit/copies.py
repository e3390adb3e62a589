"""Which images are copies of each other: embeddings give candidates, pixels decide. numpy.

Two photos of one bird a second apart are no copies, though their embeddings are nearly equal. A
copy is the same picture, scaled, compressed or cropped a little: some box of one image agrees with
the whole of the other, everywhere. The best box is searched in small grey versions, from coarse to
fine; the blocks that agree least within it decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import FloatArray, IntArray

SIDE = 96  # pixels of a grey version, whatever the shape of the image
NEIGHBOURS = 3  # candidates per image
_COARSE, _COARSE_GRID = 32, 24  # side of the coarse search in pixels, and points compared
_GRID = 64  # points of the fine comparison, along each side
_MARGINS = (0.0, 0.04, 0.08, 0.12, 0.16)  # shares of a side that the coarse search crops
_STEPS = (0.02, 0.01, 0.005, 0.0025)  # of the fine search, as shares of a side
_MIN_CORRELATION = 0.8  # of a coarse box, for the fine search to be tried
_BLOCKS = 8  # of the fine comparison, along each side
# Largest error of the worst blocks of copies, in standard deviations of the picture: between those
# of planted copies and of look-alikes, see docs/decisions/0020.
MAX_DIFFERENCE = 0.33
_PRODUCTS = 1 << 26  # cosines computed at once: 256 MB
Box = tuple[float, float, float, float]  # shares cropped from left, top, right and bottom
Grey = NDArray[np.float32]


def grey_copy(image: Image.Image) -> Grey:
    """Return a small grey version (SIDE, SIDE) of an RGB image, squashed to a square."""
    small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4.0)
    return np.asarray(small, np.float32)


def nearest(rows: FloatArray, count: int = NEIGHBOURS) -> tuple[IntArray, FloatArray]:
    """Return the nearest neighbours of unit rows (n, D), best first: rows and cosines (n, k)."""
    count = min(count, len(rows) - 1)
    places = np.empty((len(rows), max(count, 0)), np.int64)
    cosines = np.empty(places.shape, np.float32)
    step = max(1, _PRODUCTS // max(1, len(rows)))
    for start in range(0, len(rows) if count > 0 else 0, step):
        near = rows[start : start + step] @ rows.T
        mine = np.arange(len(near))
        near[mine, start + mine] = -2  # no row is its own neighbour
        best = np.argpartition(-near, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        places[start + mine] = best
        cosines[start + mine] = np.take_along_axis(near, best, axis=1)
    return places, cosines


def near_pairs(places: IntArray) -> list[tuple[int, int]]:
    """Return the pairs (i, j), i < j, of which one is among the neighbours (n, k) of the other."""
    found = {
        (min(one, other), max(one, other))
        for one, row in enumerate(places.tolist())
        for other in row
    }
    return sorted(found)


def is_copy(one: Grey, other: Grey) -> bool:
    """Tell whether two grey versions show one picture, of which either may be cropped a little."""
    return difference(one, other) <= MAX_DIFFERENCE


def difference(one: Grey, other: Grey) -> float:
    """Return how much two pictures differ where they agree least; infinite if nothing agrees.

    In standard deviations of the picture, for the box of either that fits the other best.
    """
    return min(_crop_difference(one, other), _crop_difference(other, one))


def _crop_difference(whole: Grey, part: Grey) -> float:
    """Return the `difference` of a `part` from the `whole` that it may be cropped from."""
    box, alike = _coarse_box(whole, part)
    if alike < _MIN_CORRELATION:
        return np.inf
    target = _sample_boxes(part, [(0.0, 0.0)], [(0.0, 0.0)], _GRID)[0, 0]
    for step in _STEPS:
        box = _refine_box(whole, target, box, step)
    left, top, right, bottom = box
    found = _sample_boxes(whole, [(top, bottom)], [(left, right)], _GRID)[0, 0]
    return _worst_error(_smooth(found), _smooth(target))


def _coarse_box(whole: Grey, part: Grey) -> tuple[Box, float]:
    """Return the best box by `_MARGINS`, and its correlation."""
    cuts = [(first, last) for first in _MARGINS for last in _MARGINS]
    factor = SIDE // _COARSE
    small = [each.reshape(_COARSE, factor, _COARSE, factor).mean((1, 3)) for each in (whole, part)]
    target = _sample_boxes(small[1], [(0.0, 0.0)], [(0.0, 0.0)], _COARSE_GRID)[0, 0]
    alike = _correlations(_sample_boxes(small[0], cuts, cuts, _COARSE_GRID), target)
    row, column = np.unravel_index(int(alike.argmax()), alike.shape)
    (top, bottom), (left, right) = cuts[int(row)], cuts[int(column)]
    return (left, top, right, bottom), float(alike.max())


def _refine_box(whole: Grey, target: Grey, box: Box, step: float) -> Box:
    """Move the sides of a box by a step, as long as the correlation rises."""
    moves = (-step, 0.0, step)
    for _ in range(4):
        left, top, right, bottom = box
        rows = [(top + first, bottom + last) for first in moves for last in moves]
        columns = [(left + first, right + last) for first in moves for last in moves]
        alike = _correlations(_sample_boxes(whole, rows, columns, _GRID), target)
        row, column = np.unravel_index(int(alike.argmax()), alike.shape)
        (top, bottom), (left, right) = rows[int(row)], columns[int(column)]
        if (left, top, right, bottom) == box:
            break
        box = (left, top, right, bottom)
    return box


def _sample_boxes(
    image: Grey, rows: list[tuple[float, float]], columns: list[tuple[float, float]], grid: int
) -> NDArray[np.float32]:
    """Sample the boxes of R vertical by C horizontal crops of an image: (R, C, grid, grid)."""
    side = len(image)
    down = np.concatenate([_weights(side, grid, *cut) for cut in rows])
    across = np.concatenate([_weights(side, grid, *cut) for cut in columns])
    found: NDArray[np.float32] = down @ image @ across.T
    return found.reshape(len(rows), grid, len(columns), grid).swapaxes(1, 2)


@lru_cache(maxsize=4096)
def _weights(side: int, grid: int, first: float, last: float) -> NDArray[np.float32]:
    """Return weights (grid, side) that resample the pixels between two crops, antialiased."""
    width = side * (1 - first - last) / grid
    points = side * first + (np.arange(grid) + 0.5) * width
    reach = max(width, 1.0)
    weights = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - points[:, None]) / reach)
    total = weights.sum(axis=1, keepdims=True)
    found: NDArray[np.float32] = (weights / np.where(total > 0, total, 1)).astype(np.float32)
    return found


def _correlations(found: NDArray[np.float32], target: Grey) -> NDArray[np.float32]:
    """Return the correlation (R, C) of images (R, C, g, g) with one; 0 for a constant image."""
    centred = found - found.mean((2, 3), keepdims=True)
    wanted = target - target.mean()
    lengths = np.sqrt(np.square(centred).sum((2, 3)) * np.square(wanted).sum())
    found_alike = np.einsum("rcij,ij->rc", centred, wanted) / np.where(lengths > 0, lengths, np.inf)
    alike: NDArray[np.float32] = found_alike.astype(np.float32)
    return alike


def _smooth(image: Grey) -> Grey:
    """Blur slightly: compression and scaling change the finest details most."""
    for axis in (0, 1):
        around = np.roll(image, 1, axis) + np.roll(image, -1, axis)
        image = ((image + around / 2) / 2).astype(np.float32)
    return image[1:-1, 1:-1]


def _worst_error(found: Grey, target: Grey) -> float:
    """Return the error of the worst blocks, after brightness and contrast are fitted."""
    centred, wanted = found - found.mean(), target - target.mean()
    deviation = float(wanted.std())
    gain = float((centred * wanted).sum()) / max(float(np.square(centred).sum()), 1e-9)
    if not deviation:
        return np.inf
    errors = np.square(gain * centred - wanted)
    side = len(errors) // _BLOCKS
    cut = errors[: side * _BLOCKS, : side * _BLOCKS].reshape(_BLOCKS, side, _BLOCKS, side)
    blocks = np.sort(np.sqrt(cut.mean((1, 3))).ravel())
    return float(blocks[-_BLOCKS // 2]) / deviation


def connected_groups(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of pairs; each, and all of them, in ascending order."""
    parent: dict[int, int] = {}

    def root(place: int) -> int:
        while parent.setdefault(place, place) != place:
            parent[place] = place = parent[parent[place]]
        return place

    for one, other in pairs:
        parent[root(max(one, other))] = root(min(one, other))
    groups: dict[int, list[int]] = {}
    for place in sorted(parent):
        groups.setdefault(root(place), []).append(place)
    return list(groups.values())
