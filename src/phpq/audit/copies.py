"""Which images are copies of each other: embeddings give candidates, pixels decide. numpy.

Two photos of one bird a second apart may have nearly one embedding, and are no copies. A copy is
the same picture, scaled, compressed or cropped a little: there is a box of one image that agrees
with the whole of the other, everywhere. The box is searched in small grey copies, from coarse to
fine, and then the places that agree least are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import FloatArray, IntArray

SIDE = 96  # of a grey copy, whatever the shape of the image
NEIGHBOURS = 3  # of each image that are looked at
_COARSE, _COARSE_GRID = 32, 24  # pixels that boxes are first searched in, and points compared
_GRID = 64  # points of the fine comparison
_MARGINS = (0.0, 0.04, 0.08, 0.12, 0.16)  # of each side that may be cut off
_STEPS = (0.02, 0.01, 0.005, 0.0025)
_ALIKE = 0.8  # correlation of a coarse box below which nothing finer is tried
_BLOCKS = 8  # of the fine comparison, along each side
# Error of the worst blocks, in deviations of the picture, above which two are no copies: between
# what planted copies and what look-alikes show, see docs/decisions/0020.
MOST_APART = 0.33
_PRODUCTS = 1 << 26  # cosines computed at once: 256 MB
Box = tuple[float, float, float, float]  # left, top, right, bottom: what is cut off each side
Grey = NDArray[np.float32]


def grey_copy(image: Image.Image) -> Grey:
    """Return a small grey copy (SIDE, SIDE) of an RGB image, squashed."""
    small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=4.0)
    return np.asarray(small, np.float32)


def nearest(rows: FloatArray, count: int = NEIGHBOURS) -> tuple[IntArray, FloatArray]:
    """Return the nearest others of unit rows (n, D), nearest first: places and cosines (n, k)."""
    count = min(count, len(rows) - 1)
    places = np.empty((len(rows), max(count, 0)), np.int64)
    cosines = np.empty(places.shape, np.float32)
    step = max(1, _PRODUCTS // max(1, len(rows)))
    for start in range(0, len(rows) if count > 0 else 0, step):
        near = rows[start : start + step] @ rows.T
        mine = np.arange(len(near))
        near[mine, start + mine] = -2  # nobody is near by itself
        best = np.argpartition(-near, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        places[start + mine] = best
        cosines[start + mine] = np.take_along_axis(near, best, axis=1)
    return places, cosines


def near_pairs(places: IntArray) -> list[tuple[int, int]]:
    """Return the pairs (i, j), i < j, of which one is among the nearest (n, k) of the other."""
    found = {
        (min(one, other), max(one, other))
        for one, row in enumerate(places.tolist())
        for other in row
    }
    return sorted(found)


def is_copy(one: Grey, other: Grey) -> bool:
    """Say whether two grey copies are of one picture, of which either may be cropped a little."""
    return apart(one, other) <= MOST_APART


def apart(one: Grey, other: Grey) -> float:
    """Return how far two pictures are apart where they agree least; infinite if not alike at all.

    In deviations of the picture, for the box of the one that fits the other best, or the reverse.
    """
    return min(_apart(one, other), _apart(other, one))


def _apart(whole: Grey, part: Grey) -> float:
    """Do as `apart` for a `part` that may be cropped from a `whole`."""
    box, alike = _coarse_box(whole, part)
    if alike < _ALIKE:
        return np.inf
    target = _sampled(part, [(0.0, 0.0)], [(0.0, 0.0)], _GRID)[0, 0]
    for step in _STEPS:
        box = _finer(whole, target, box, step)
    left, top, right, bottom = box
    found = _sampled(whole, [(top, bottom)], [(left, right)], _GRID)[0, 0]
    return _worst(_smooth(found), _smooth(target))


def _coarse_box(whole: Grey, part: Grey) -> tuple[Box, float]:
    """Return the best of a few boxes, and how well it correlates."""
    cuts = [(first, last) for first in _MARGINS for last in _MARGINS]
    factor = SIDE // _COARSE
    small = [each.reshape(_COARSE, factor, _COARSE, factor).mean((1, 3)) for each in (whole, part)]
    target = _sampled(small[1], [(0.0, 0.0)], [(0.0, 0.0)], _COARSE_GRID)[0, 0]
    alike = _correlations(_sampled(small[0], cuts, cuts, _COARSE_GRID), target)
    row, column = np.unravel_index(int(alike.argmax()), alike.shape)
    (top, bottom), (left, right) = cuts[int(row)], cuts[int(column)]
    return (left, top, right, bottom), float(alike.max())


def _finer(whole: Grey, target: Grey, box: Box, step: float) -> Box:
    """Move the sides of a box by a step, as long as that makes it fit better."""
    moves = (-step, 0.0, step)
    for _ in range(4):
        left, top, right, bottom = box
        rows = [(top + first, bottom + last) for first in moves for last in moves]
        columns = [(left + first, right + last) for first in moves for last in moves]
        alike = _correlations(_sampled(whole, rows, columns, _GRID), target)
        row, column = np.unravel_index(int(alike.argmax()), alike.shape)
        (top, bottom), (left, right) = rows[int(row)], columns[int(column)]
        if (left, top, right, bottom) == box:
            break
        box = (left, top, right, bottom)
    return box


def _sampled(
    image: Grey, rows: list[tuple[float, float]], columns: list[tuple[float, float]], grid: int
) -> NDArray[np.float32]:
    """Return an image within boxes, each pair of rows with each of columns: (R, C, grid, grid)."""
    side = len(image)
    down = np.concatenate([_weights(side, grid, *cut) for cut in rows])
    across = np.concatenate([_weights(side, grid, *cut) for cut in columns])
    found: NDArray[np.float32] = down @ image @ across.T
    return found.reshape(len(rows), grid, len(columns), grid).swapaxes(1, 2)


@lru_cache(maxsize=4096)
def _weights(side: int, grid: int, first: float, last: float) -> NDArray[np.float32]:
    """Return (grid, side): what turns pixels into points between two cuts, averaging where wide."""
    width = side * (1 - first - last) / grid
    points = side * first + (np.arange(grid) + 0.5) * width
    reach = max(width, 1.0)
    weights = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - points[:, None]) / reach)
    total = weights.sum(axis=1, keepdims=True)
    found: NDArray[np.float32] = (weights / np.where(total > 0, total, 1)).astype(np.float32)
    return found


def _correlations(found: NDArray[np.float32], target: Grey) -> NDArray[np.float32]:
    """Return the correlation (R, C) of images (R, C, g, g) with one; 0 for one of one shade."""
    centred = found - found.mean((2, 3), keepdims=True)
    wanted = target - target.mean()
    lengths = np.sqrt(np.square(centred).sum((2, 3)) * np.square(wanted).sum())
    found_alike = np.einsum("rcij,ij->rc", centred, wanted) / np.where(lengths > 0, lengths, np.inf)
    alike: NDArray[np.float32] = found_alike.astype(np.float32)
    return alike


def _smooth(image: Grey) -> Grey:
    """Average each pixel with its neighbours: what compression and scaling change is finest."""
    for axis in (0, 1):
        around = np.roll(image, 1, axis) + np.roll(image, -1, axis)
        image = ((image + around / 2) / 2).astype(np.float32)
    return image[1:-1, 1:-1]


def _worst(found: Grey, target: Grey) -> float:
    """Return the error of the blocks that agree least, after brightness and contrast are fitted."""
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


def grouped(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return what pairs tie together, each group and the groups in ascending order."""
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
