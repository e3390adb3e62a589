"""Copies: what is scaled, compressed or cropped is found; what only looks alike is not."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from doubtful_galleries import cropped, texture
from phpq.audit.copies import (
    MAX_DIFFERENCE,
    SIDE,
    _correlations,
    _sample_boxes,
    connected_groups,
    difference,
    grey_copy,
    is_copy,
    near_pairs,
    nearest,
)


def recompressed(image: Image.Image, quality: int = 30) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def large(seed: int) -> Image.Image:
    return texture(seed, (120, 110, 100), (240, 180))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((97, 71)),
        recompressed,
        cropped,
        lambda image: recompressed(cropped(image)),
        lambda image: image.point(lambda value: round(0.8 * value + 20)),
    ],
    ids=["scaled", "compressed", "cropped", "both", "brighter"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_is_a_copy_whichever_comes_first(change, seed: int) -> None:  # type: ignore[no-untyped-def]
    one, other = grey_copy(large(seed)), grey_copy(change(large(seed)))
    assert is_copy(one, other)
    assert is_copy(other, one)


def test_another_picture_and_one_where_something_moved_are_no_copies() -> None:
    image = large(4)
    assert difference(grey_copy(image), grey_copy(large(5))) > MAX_DIFFERENCE
    moved = image.copy()
    moved.paste(image.crop((20, 20, 90, 100)), (120, 60))  # as a bird that turned its head
    assert difference(grey_copy(image), grey_copy(moved)) > 2 * MAX_DIFFERENCE
    half = image.crop((0, 0, 120, 180))
    assert not is_copy(grey_copy(image), grey_copy(half))


def test_pictures_of_one_shade_are_no_copies() -> None:
    flat = np.full((SIDE, SIDE), 90, np.float32)
    assert not is_copy(flat, flat)


def test_boxes_are_sampled_and_compared_as_plain_loops_do() -> None:
    image = np.random.default_rng(0).random((16, 16)).astype(np.float32)
    rows, columns = [(0.0, 0.25), (0.25, 0.0)], [(0.0, 0.0), (0.25, 0.25)]
    found = _sample_boxes(image, rows, columns, 4)
    assert found.shape == (2, 2, 4, 4)
    width = 16 * 0.75 / 4
    for line in range(4):
        centre = (line + 0.5) * width
        weights = [max(0.0, 1 - abs(pixel + 0.5 - centre) / width) for pixel in range(16)]
        across = [max(0.0, 1 - abs(pixel + 0.5 - 2) / 4) for pixel in range(16)]
        value = sum(weights[y] * across[x] * image[y, x] for y in range(16) for x in range(16)) / (
            sum(weights) * sum(across)
        )
        assert found[0, 0, line, 0] == pytest.approx(value, rel=1e-4)
    target = found[1, 1]
    alike = _correlations(found, target)
    for row, column in np.ndindex(2, 2):
        plain = np.corrcoef(found[row, column].ravel(), target.ravel())[0, 1]
        assert alike[row, column] == pytest.approx(plain, abs=1e-5)


def test_the_nearest_are_those_of_a_plain_sort() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    places, cosines = nearest(rows, 5)
    for row in range(40):
        scores = [(-float(rows[row] @ rows[other]), other) for other in range(40) if other != row]
        assert places[row].tolist() == [other for _, other in sorted(scores)[:5]]
        assert cosines[row, 0] == pytest.approx(-min(scores)[0], abs=1e-5)
    assert nearest(rows[:1])[0].shape == (1, 0)
    assert nearest(rows[:0])[0].shape == (0, 0)


def test_pairs_are_of_each_and_its_nearest_and_groups_hold_together() -> None:
    places = np.array([[1, 2], [0, 2], [3, 1], [2, 1]])
    assert near_pairs(places) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    assert connected_groups([(5, 2), (7, 8), (2, 9), (9, 5)]) == [[2, 5, 9], [7, 8]]
    assert connected_groups([]) == []
