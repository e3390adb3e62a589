"""Labelled points: numbers with names in, a PNG out, in the style of the other plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phpq.errors import ShapeError
from phpq.report import pictures

_SIZE = 7.5  # of labels, points
_FAR = 12  # points; a label that stands so far off is joined to its mark by a line
# Where a label may stand: to the right (1), the left (-1) or across (0), and points higher.
_PLACES = tuple(
    (across, up)
    for up in (0, 7, -7, 12, -12, 18, -18, 25, -25)
    for across in ((1, -1) if abs(up) < _FAR else (1, -1, 0))
)


@dataclass(frozen=True, slots=True)
class Point:
    """One mark of `plot_points`."""

    x: float  # above 0
    y: float
    label: str
    group: str  # which has a colour and a mark of its own
    hollow: bool = False


def plot_points(
    points: Sequence[Point], *, title: str, labels: tuple[str, str], strong: str
) -> bytes:
    """Draw labelled points over a logarithmic x axis; the group `strong` stands out.

    A label stands beside its point where there is room, and is left out where there is none; the
    points of the strong group choose first, then the highest.
    """
    if not points:
        raise ShapeError("There is nothing to plot: no points were given. Measure first.")
    figure, (axes,) = pictures._new_figure(1, 1, size=(10.5, 6.4))
    axes.set_xscale("log")
    for number, group in enumerate(dict.fromkeys(point.group for point in points)):
        look = pictures._look(None if group == strong else number, alone=True)
        name: str | None = group
        for hollow in (False, True):
            mine = [point for point in points if (point.group, point.hollow) == (group, hollow)]
            inside = {"markerfacecolor": "white", "markeredgecolor": look["color"]}
            changes = inside | {"markeredgewidth": 1.6} if hollow else {}
            if mine:
                places = ([point.x for point in mine], [point.y for point in mine])
                axes.plot(*places, label=name, **(look | {"linestyle": "none"} | changes))
                name = None  # once in the legend
    axes.margins(x=0.12, y=0.07)
    pictures._dress(axes, title, *labels)
    beside = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.11), "ncols": 5}
    pictures._legend(axes, **beside)
    figure.draw_without_rendering()  # so that places are known in pixels
    _label_points(axes, sorted(points, key=lambda point: (point.group != strong, -point.y)))
    return pictures._figure_png(figure)


def _label_points(axes: Any, points: Sequence[Point]) -> None:
    """Write labels where they cover neither points nor each other, in the order given."""
    unit = pictures._DPI / 72
    places = [axes.transData.transform((point.x, point.y)) for point in points]
    taken = [(x - 6 * unit, y - 5 * unit, x + 6 * unit, y + 5 * unit) for x, y in places]
    limits = axes.get_window_extent()
    for point, (x, y) in zip(points, places, strict=True):
        width, height = 0.54 * _SIZE * unit * len(point.label), 1.25 * _SIZE * unit
        for across, up in _PLACES:
            left = x + (8 * unit if across > 0 else -8 * unit - width if across < 0 else -width / 2)
            bottom = y + up * unit - height / 2
            box = (left, bottom, left + width, bottom + height)
            inside = limits.x0 < box[0] and box[2] < limits.x1 and limits.y0 < box[1]
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                back = axes.transData.inverted().transform
                edge = {1: left, 0: left + width / 2, -1: left + width}[across]
                axes.text(
                    *back((edge, bottom + height / 2)),
                    point.label,
                    ha={1: "left", 0: "center", -1: "right"}[across],
                    fontsize=_SIZE,
                    color=pictures._INK,
                    va="center",
                )
                if abs(up) >= _FAR:
                    nearest = back((min(max(x, left), left + width), bottom + (up < 0) * height))
                    ends = zip((point.x, point.y), nearest, strict=True)
                    axes.plot(*ends, color=pictures._FAINT, linewidth=0.6, zorder=2)
                break


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
