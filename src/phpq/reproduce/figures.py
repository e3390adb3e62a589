"""The figures of the paper again: plain numbers in, PNG bytes out; no pyplot, no global style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phpq.evaluation.plots import INK, dress, new_figure, render

_COLOURS = ("#c8553d", "#7a5195", "#2f8f5b", "#b8860b", "#4a4e69", "#5b8fb9", "#a23b72", "#8a8d3f")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
_DASHES = ("-", "--", "-.", ":")
_OURS = {"color": "#0b6e99", "linewidth": 3.0, "marker": "o", "zorder": 5}

Points = Mapping[float, float]


def plot_curves(
    curves: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    strong: str,
    log: bool = True,
) -> bytes:
    """Draw a line for each name.

    Args:
        curves: Name in the legend -> points.
        title: Above the picture.
        x_label: Below it.
        y_label: Beside it.
        strong: The name that stands out.
        log: Whether x is logarithmic.
    """
    figure, (axes,) = new_figure(1, 1, width=8.2, height=4.6)
    for number, (name, points) in enumerate(curves.items()):
        x, y = zip(*sorted(points.items()), strict=True)
        axes.plot(x, y, label=name, **(_OURS if name == strong else _style(number)))
    ticks = sorted({x for points in curves.values() for x in points})
    if log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    dress(axes, title, x_label, y_label)
    axes.legend(
        frameon=False, fontsize=8, labelcolor=INK, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )
    return render(figure)


def plot_scatter(
    points: Sequence[tuple[str, float, float]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    strong: str,
) -> bytes:
    """Draw a named mark for each (name, x, y), x logarithmic.

    Args:
        points: At least one.
        title: Above the picture.
        x_label: Below it.
        y_label: Beside it.
        strong: The name that stands out.
    """
    figure, (axes,) = new_figure(1, 1, width=8.2, height=4.6)
    for number, (name, x, y) in enumerate(points):
        colour = _OURS["color"] if name == strong else _COLOURS[number % len(_COLOURS)]
        marker = "o" if name == strong else _MARKERS[number % len(_MARKERS)]
        size = 90 if name == strong else 45
        axes.scatter([x], [y], s=size, color=colour, marker=marker, label=name, zorder=3)
    axes.set_xscale("log")
    dress(axes, title, x_label, y_label)
    axes.legend(
        frameon=False, fontsize=8, labelcolor=INK, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )
    return render(figure)


def _style(number: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linewidth": 1.4,
        "markersize": 4,
    }
