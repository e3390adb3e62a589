"""Figures of one style: numbers in, PNG bytes out.

Figures are built as objects: no pyplot and no global style, so nothing else is disturbed.
matplotlib is imported when something is drawn: machines that only train do without.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from phpq.errors import ShapeError

# Told apart by people who do not see all colours; markers and dashes tell them apart as well.
_OURS = "#0b6e99"
_COLOURS = ("#c8553d", "#7a5195", "#2f8f5b", "#b8860b", "#4a4e69", "#5b8fb9", "#a23b72", "#8a8d3f")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
_DASHES = ("-", "--", "-.", ":")
_INK, _FAINT = "#22282f", "#d8dde3"
_DPI = 160
_FEW = 25  # points of a line that are all marked

Axis = Literal["ticks", "log", "linear"]


def plot_curves(
    curves: Mapping[str, Mapping[float, float]],
    *,
    title: str,
    labels: tuple[str, str],
    strong: str,
    x_axis: Axis = "ticks",
    y_range: tuple[float, float] | None = None,
    wide: bool = False,
) -> bytes:
    """Draw a line for each name; a name with one point is a mark.

    Args:
        curves: Name in the legend -> y by x.
        title: Above the picture.
        labels: Of the x axis and of the y axis.
        strong: The name that stands out.
        x_axis: "ticks" marks every x that occurs, on a logarithmic axis if they span a factor of
            20; "log" and "linear" leave the ticks to matplotlib.
        y_range: Ends of the y axis; None fits them to the points.
        wide: A larger picture with its legend beside it, for many names.

    Returns:
        A PNG.
    """
    _require(curves)
    figure, (axes,) = _new_figure(1, 1, size=(8.2, 4.6) if wide else (5.6, 3.9))
    number = 0
    for name, points in curves.items():
        x, y = zip(*sorted(points.items()), strict=True)
        look = _look(None if name == strong else number, alone=len(points) == 1)
        number += name != strong
        if len(points) > _FEW:
            look["markevery"] = (2 * number, len(points) // 8)
        axes.plot(x, y, label=name, **look)
    ticks = sorted({x for points in curves.values() for x in points})
    if x_axis == "log" or (x_axis == "ticks" and ticks[-1] > 20 * ticks[0] > 0):
        axes.set_xscale("log")
    if x_axis == "ticks":
        axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if y_range is not None:
        axes.set_ylim(*y_range)
    _dress(axes, title, *labels)
    beside = {"fontsize": 8, "loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if wide else {}
    _legend(axes, **beside)
    return _render(figure)


# What an epoch records besides the terms of its loss, see `phpq.training`.
_COLUMNS = (
    "epoch",
    "loss",
    "learning_rate",
    "seconds",
    "images_per_second",
    "distinct_codes",
    "dead_codewords",
    "entropy_bits",
    "collapsing",
    "map",
    "map_learned",
    "gallery_distinct_codes",
)


def plot_training(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw a run over its epochs: losses, MAP, learning rate, and the health of the codebooks.

    Args:
        rows: The rows of metrics.jsonl, each with "epoch"; a value that a row lacks is left out.

    Returns:
        A PNG.
    """
    _require(rows)
    terms = [name for name in rows[0] if name not in _COLUMNS]  # of the method's loss
    panels: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("Loss", "loss", ("loss", *terms)),
        ("MAP of the evaluated epochs", "MAP, %", ("map",)),
        ("Learning rate", "rate", ("learning_rate",)),
        ("Distinct codes", "codes", ("distinct_codes",)),
        ("Dead codewords", "codewords", ("dead_codewords",)),
        ("Entropy of the codebooks", "bits", ("entropy_bits",)),
    )
    figure, all_axes = _new_figure(2, 3, size=(11.0, 5.8))
    for axes, (title, unit, names) in zip(all_axes, panels, strict=True):
        drawn = [_plot_column(axes, rows, name, number) for number, name in enumerate(names)]
        _dress(axes, title, "epoch", unit)
        axes.set_xlim(0, 1.02 * max(1, *(row["epoch"] for row in rows)))
        axes.locator_params(axis="x", integer=True)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        if not any(drawn):
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=_INK)
        elif len(names) > 1:
            _legend(axes)
    return _render(figure)


def _plot_column(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, number: int) -> bool:
    points = [
        (row["epoch"], float(row[name]))
        for row in rows
        if isinstance(row.get(name), int | float) and math.isfinite(row[name])
    ]
    if points:
        look = _look(number - 1 if number else None)
        if len(points) > _FEW:
            del look["marker"]
        axes.plot(*zip(*points, strict=True), label=name, **look)
    return bool(points)


def _new_figure(rows: int, columns: int, *, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Return an empty figure and its axes, row by row; width and height in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=size, dpi=_DPI, layout=layout, facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _look(number: int | None, *, alone: bool = False) -> dict[str, Any]:
    """Return the look of a line; None is the line that stands out."""
    return {
        "color": _OURS if number is None else _COLOURS[number % len(_COLOURS)],
        "linestyle": "-" if number is None else _DASHES[number // len(_COLOURS) % len(_DASHES)],
        "marker": "o" if number is None else _MARKERS[number % len(_MARKERS)],
        "linewidth": 2.6 if number is None else 1.5,
        "markersize": (7.5 if alone else 5.5) + (2.5 if number is None and alone else 0),
        "markeredgewidth": 0.6,
        "markeredgecolor": "white",
        "zorder": 5 if number is None else 3,
    }


def _dress(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=10)
    axes.set_xlabel(x_label, fontsize=9.5, color=_INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=_INK)
    axes.tick_params(labelsize=9, colors=_INK, length=0)
    axes.grid(visible=True, color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)


def _legend(axes: Any, **place: Any) -> None:
    axes.legend(**({"frameon": False, "fontsize": 9, "labelcolor": _INK} | place))


def _render(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _require(values: Mapping[str, Any] | Sequence[Any]) -> None:
    if not values:
        raise ShapeError("There is nothing to plot: no scores or rows were given. Evaluate first.")
