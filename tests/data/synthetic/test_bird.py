from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from phpq.data.synthetic.bird import COLOURS, Bird, MarkSite, draw_bird
from phpq.data.synthetic.pen import Pen
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
