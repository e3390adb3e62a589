from __future__ import annotations

import math

import pytest
from PIL import Image, ImageDraw

from phpq.data.synthetic.pen import Pen, arc, ellipse, mix, path, shade, smooth


def pen(scale: float = 10.0) -> Pen:
    draw = ImageDraw.Draw(Image.new("RGB", (40, 40)))
    return Pen(draw, (scale, 0.0, 0.0, scale, 20.0, 20.0))


def test_a_pen_places_by_its_matrix_and_turns_about_a_point() -> None:
    assert pen().place([(1.0, -1.0)]) == [(30.0, 10.0)]
    turned = pen().turned(90, (1.0, 0.0))
    assert turned.place([(1.0, 0.0)])[0] == pytest.approx((30.0, 20.0))
    assert turned.place([(2.0, 0.0)])[0] == pytest.approx((30.0, 30.0))
    assert turned.scale == pytest.approx(10.0)


def test_four_quarter_turns_are_none() -> None:
    one = pen()
    for _ in range(4):
        one = one.turned(90, (0.3, 0.7))
    assert one.place([(0.2, 0.9)])[0] == pytest.approx(pen().place([(0.2, 0.9)])[0])


def test_curves_pass_through_their_points() -> None:
    points = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 2.0)]
    assert smooth(points, 4)[::4] == points
    assert len(smooth(points, 4)) == 16


def test_a_path_is_read_from_text() -> None:
    assert path("0.5,-0.1 0,2") == [(0.5, -0.1), (0.0, 2.0)]


def test_arcs_and_ellipses_lie_on_the_curve() -> None:
    for x, y in ellipse((1.0, 2.0), 3.0, 0.5):
        assert math.hypot((x - 1) / 3, (y - 2) / 0.5) == pytest.approx(1.0)
    assert arc((0.0, 0.0), 1.0, 1.0, 0.0, 90.0)[-1] == pytest.approx((0.0, 1.0))


def test_colours_mix_and_shade() -> None:
    assert mix((0, 0, 0), (100, 200, 50), 0.5) == (50, 100, 25)
    assert shade((100, 100, 100), 0.5) == (50, 50, 50)
    assert shade((155, 155, 155), 1.5) == (205, 205, 205)


def test_a_filled_shape_is_where_it_should_be() -> None:
    image = Image.new("RGB", (40, 40))
    Pen(ImageDraw.Draw(image), (10.0, 0.0, 0.0, 10.0, 20.0, 20.0)).fill(
        [(-1, -1), (1, -1), (1, 1), (-1, 1)], (255, 0, 0)
    )
    assert image.getbbox() == (10, 10, 31, 31)
