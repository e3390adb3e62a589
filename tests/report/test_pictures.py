"""The top-10 picture: right and wrong are told apart by colour and by shape."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.report.pictures import (
    HitRow,
    _font,
    _wrap,
    draw_grid,
    draw_hits,
    hit_rows,
    spread_queries,
)

GREEN, RED = (27, 138, 75), (198, 47, 59)
NAMES = ("Crow", "A_very_long_name_of_a_rather_small_bird_from_the_north", "Żółw łąkowy")


def picture(number: int) -> Image.Image:
    return Image.new(
        "L" if number % 2 else "RGBA", (40 + number, 90), 128 if number % 2 else "blue"
    )


def draw(rows: tuple[HitRow, ...]) -> Image.Image:
    data = draw_hits(rows, query_image=picture, gallery_image=picture, tile=64)
    return Image.open(io.BytesIO(data)).convert("RGB")


def count(image: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(image) == colour).all(axis=2).sum())


def test_hits_are_named_and_judged() -> None:
    ids = np.array([[2, 0, 1], [1, -1, -1]])
    rows = hit_rows(
        ids,
        [4, 0],
        query_labels=np.array([1, 0, 0, 0, 2]),
        gallery_labels=np.array([0, 1, 2]),
        class_names=NAMES,
    )
    assert rows[0] == HitRow(
        4, NAMES[2], (2, 0, 1), (NAMES[2], NAMES[0], NAMES[1]), (True, False, False)
    )
    assert rows[1].hits == (1,)
    assert rows[1].right == (True,)
    with pytest.raises(ShapeError, match="1 queries but 2 rows of hits"):
        hit_rows(
            ids,
            [4],
            query_labels=np.zeros(5, dtype=np.int64),
            gallery_labels=np.zeros(3, dtype=np.int64),
            class_names=NAMES,
        )


def test_frames_follow_the_judgement() -> None:
    names = (NAMES[0], NAMES[1], NAMES[2])
    right = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, True, True)),))
    wrong = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (False, False, False)),))
    mixed = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, False, True)),))
    assert count(right, RED) == count(wrong, GREEN) == 0
    assert count(mixed, GREEN) == pytest.approx(2 / 3 * count(right, GREEN), rel=0.01)
    assert count(mixed, RED) == pytest.approx(1 / 3 * count(wrong, RED), rel=0.01)


def test_tick_and_cross_differ_without_colour() -> None:
    def badge(right: bool) -> Any:
        picture = draw((HitRow(0, "Crow", (1,), ("Crow",), (right,)),)).convert("1")
        row = np.asarray(picture)[37:101]  # of the image, below the numbers
        return row[:16, -16 - 16 : -16]

    tick, cross = badge(True), badge(False)
    assert tick.any()
    assert (tick != cross).mean() > 0.1


def test_rows_may_have_fewer_hits_than_others() -> None:
    full = HitRow(0, "Crow", (1, 2), ("Crow", "Crow"), (True, True))
    short = HitRow(1, "Crow", (), (), ())
    one, two = draw((full,)), draw((full, short))
    assert two.width == one.width
    assert two.height > one.height
    with pytest.raises(ShapeError, match="no queries to draw"):
        draw(())


def test_long_names_fit_their_tile() -> None:
    font = _font(13)
    for name in (*NAMES, "Supercalifragilisticexpialidocious", "", "two words"):
        lines = _wrap(name.replace("_", " "), width=64, font=font)
        assert len(lines) <= 2
        assert all(font.getlength(line) <= 64 for line in lines)
    assert _wrap("two words", width=400, font=font) == ["two words"]
    assert _wrap("Supercalifragilisticexpialidocious", width=64, font=font)[-1].endswith("…")


def test_queries_are_spread_over_the_classes() -> None:
    labels = np.array([4, 4, 7, 9, 9, 7, 30])
    assert spread_queries(labels, 8) == [0, 2, 3, 6]  # the first of each class
    assert spread_queries(labels, 2) == [0, 6]
    assert spread_queries(labels, 1) == [0]


def test_a_grid_is_row_by_row() -> None:
    tiles = [[Image.new("RGB", (8, 8), c) for c in row] for row in (("red", "blue"), ("lime",))]
    picture = Image.open(io.BytesIO(draw_grid(tiles, gap=2)))
    assert picture.size == (18, 18)
    corners = [picture.getpixel(at) for at in ((0, 0), (10, 0), (0, 10), (10, 10))]
    assert corners == [(255, 0, 0), (0, 0, 255), (0, 255, 0), (255, 255, 255)]
