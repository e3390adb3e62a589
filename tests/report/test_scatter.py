"""Labelled points."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.report.scatter import Point, _overlap, plot_points


@pytest.mark.usefixtures("drawn_figures")
def test_points_are_drawn_with_their_labels() -> None:
    points = [
        Point(1.0, 10.0, "one", "ours"),
        Point(1.02, 10.1, "beside it", "ours", hollow=True),
        Point(1000.0, 90.0, "far", "theirs", hollow=True),
    ]
    picture = plot_points(points, title="title", labels=("x", "y"), strong="ours")
    with_labels = Image.open(io.BytesIO(picture)).convert("L")
    bare = [Point(p.x, p.y, "", p.group, p.hollow) for p in points]
    without = Image.open(
        io.BytesIO(plot_points(bare, title="title", labels=("x", "y"), strong="ours"))
    )
    dark = [sum(image.histogram()[:128]) for image in (with_labels, without.convert("L"))]
    assert dark[0] > dark[1] > 0


def test_no_points_are_refused() -> None:
    with pytest.raises(ShapeError, match="nothing to plot"):
        plot_points([], title="", labels=("", ""), strong="")


def test_boxes_that_touch_do_not_overlap() -> None:
    assert _overlap((0, 0, 2, 2), (1, 1, 3, 3))
    assert not _overlap((0, 0, 1, 1), (1, 0, 2, 1))
