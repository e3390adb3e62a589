from __future__ import annotations

import math
import random
from dataclasses import fields, replace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from phpq.data.synthetic._bird import (
    COLOURS,
    Bird,
    MarkSite,
    Pen,
    arc,
    draw_bird,
    ellipse,
    mix,
    path,
    shade,
    smooth,
)
from phpq.data.synthetic.species import VALUES, Marks

PLAIN = Marks(**{mark: values[0] for mark, values in VALUES.items()})
BIRD = Bird(
    head=0.0,
    tail=0.0,
    wing=0.0,
    coat=(120, 110, 100),
    belly=(220, 210, 200),
    wear=dict.fromkeys(VALUES, 0.0),
)


def drawn(marks: Marks) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], list[MarkSite]]:
    image = Image.new("RGB", (200, 200), (90, 140, 90))
    pen = Pen(ImageDraw.Draw(image), (80.0, 0.0, 0.0, 80.0, 105.0, 100.0))
    sites = draw_bird(pen, marks, BIRD, random.Random(0))
    return np.asarray(image, dtype=np.int64), sites


@pytest.mark.parametrize("mark", sorted(VALUES))
def test_each_value_of_a_mark_changes_the_bird_at_its_site_only(mark: str) -> None:
    seen: list[bytes] = []
    plain, _ = drawn(PLAIN)
    for value in VALUES[mark]:
        pixels, sites = drawn(replace(PLAIN, **{mark: value}))
        seen.append(pixels.tobytes())
        points = [p for site in sites if site.mark == mark for shape in site.shapes for p in shape]
        xs, ys = zip(*points, strict=True)
        rows, columns = np.nonzero((pixels != plain).any(axis=2))
        if len(rows):
            # Two pixels for the width of an outline; the old beak may reach beyond the new one.
            slack = 25 if mark == "beak" else 3
            assert min(xs) - slack <= columns.min() <= columns.max() <= max(xs) + slack
            assert min(ys) - slack <= rows.min() <= rows.max() <= max(ys) + slack
    assert len(set(seen)) == len(VALUES[mark])


def test_every_mark_has_a_site_drawn_or_not() -> None:
    _, sites = drawn(PLAIN)
    assert sorted(site.mark for site in sites) == sorted(field.name for field in fields(Marks))
    assert {site.mark: site.value for site in sites} == {
        field.name: getattr(PLAIN, field.name) for field in fields(Marks)
    }


def test_marks_are_small() -> None:
    # The species must be told by details: no mark may cover a large part of the bird.
    plain, _ = drawn(PLAIN)
    bird = (plain != (90, 140, 90)).any(axis=2).sum()
    for mark, values in VALUES.items():
        for value in values:
            pixels, _ = drawn(replace(PLAIN, **{mark: value}))
            assert (pixels != plain).any(axis=2).sum() < 0.12 * bird, (mark, value)


def test_a_worn_mark_fades_into_the_coat() -> None:
    worn = replace(BIRD, wear=dict.fromkeys(VALUES, 1.0))
    assert worn.ink("crown", "red", worn.coat) == worn.coat
    assert BIRD.ink("crown", "red", BIRD.coat) == COLOURS["red"]


def pen_of(scale: float = 10.0) -> Pen:
    draw = ImageDraw.Draw(Image.new("RGB", (40, 40)))
    return Pen(draw, (scale, 0.0, 0.0, scale, 20.0, 20.0))


def test_a_pen_places_by_its_matrix_and_turns_about_a_point() -> None:
    assert pen_of().place([(1.0, -1.0)]) == [(30.0, 10.0)]
    turned = pen_of().turned(90, (1.0, 0.0))
    assert turned.place([(1.0, 0.0)])[0] == pytest.approx((30.0, 20.0))
    assert turned.place([(2.0, 0.0)])[0] == pytest.approx((30.0, 30.0))
    assert turned.scale == pytest.approx(10.0)


def test_four_quarter_turns_are_none() -> None:
    one = pen_of()
    for _ in range(4):
        one = one.turned(90, (0.3, 0.7))
    assert one.place([(0.2, 0.9)])[0] == pytest.approx(pen_of().place([(0.2, 0.9)])[0])


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
