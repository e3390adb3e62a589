"""Curves of an evaluation and of a training run: numbers in, PNG or SVG bytes out.

Figures are built as objects: no pyplot and no global style, so nothing else is disturbed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phpq.errors import ConfigError, ShapeError
from phpq.evaluation.protocol import RetrievalScores

# Told apart by people who do not see all colours; markers and dashes tell them apart as well.
_COLOURS = ("#0b6e99", "#c8553d", "#7a5195", "#2f8f5b", "#b8860b", "#4a4e69")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
INK, _FAINT = "#22282f", "#d8dde3"
_FORMATS = ("png", "svg")
_DPI = 160


def plot_precision_at(
    scores: Mapping[str, RetrievalScores], path: Path | None = None, *, image_format: str = "png"
) -> bytes:
    """Draw precision of the first N hits against N, one line a way of searching.

    Args:
        scores: Name in the legend -> what was measured.
        path: Also write the picture here; .png or .svg decides the format.
        image_format: "png" or "svg" where no path is given.

    Returns:
        The picture.
    """
    _require(scores)
    figure, (axes,) = new_figure(1, 1, width=5.6, height=3.9)
    for number, (name, score) in enumerate(scores.items()):
        points = sorted(score.precision_at.items())
        values = [100 * value for _, value in points]
        axes.plot([n for n, _ in points], values, label=name, **_line(number), **_marker(number))
    cutoffs = sorted({n for score in scores.values() for n in score.precision_at})
    if cutoffs and cutoffs[-1] > 20 * cutoffs[0]:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(cutoffs, [str(n) for n in cutoffs])
    dress(axes, "Precision of the first N hits", "N", "precision, %")
    _legend(axes)
    return render(figure, path, image_format)


def plot_precision_recall(
    scores: Mapping[str, RetrievalScores], path: Path | None = None, *, image_format: str = "png"
) -> bytes:
    """Draw interpolated precision against recall, one line a way of searching.

    Args:
        scores: Name in the legend -> what was measured.
        path: Also write the picture here; .png or .svg decides the format.
        image_format: "png" or "svg" where no path is given.

    Returns:
        The picture.
    """
    _require(scores)
    figure, (axes,) = new_figure(1, 1, width=5.6, height=3.9)
    for number, (name, score) in enumerate(scores.items()):
        recall = [100 * value for value in score.pr_curve.recall]
        precision = [100 * value for value in score.pr_curve.precision]
        label = f"{name}  (MAP {score.map_percent:.1f})"
        every = {"markevery": (2 * number, max(1, len(recall) // 8))}
        axes.plot(recall, precision, label=label, **_line(number), **_marker(number), **every)
    axes.set_xlim(-1, 101)
    axes.set_ylim(-2, 102)
    dress(axes, "Precision and recall", "recall, %", "precision, %")
    _legend(axes)
    return render(figure, path, image_format)


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


def plot_training(
    rows: Sequence[Mapping[str, Any]], path: Path | None = None, *, image_format: str = "png"
) -> bytes:
    """Draw a run over its epochs: losses, MAP, learning rate, and the health of the codebooks.

    Args:
        rows: The rows of metrics.jsonl, each with "epoch"; a value that a row lacks is left out.
        path: Also write the picture here; .png or .svg decides the format.
        image_format: "png" or "svg" where no path is given.

    Returns:
        The picture.
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
    figure, all_axes = new_figure(2, 3, width=11.0, height=5.8)
    for axes, (title, unit, names) in zip(all_axes, panels, strict=True):
        drawn = [_plot_column(axes, rows, name, number) for number, name in enumerate(names)]
        dress(axes, title, "epoch", unit)
        axes.set_xlim(0, 1.02 * max(1, *(row["epoch"] for row in rows)))
        axes.locator_params(axis="x", integer=True)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        if not any(drawn):
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=INK)
        elif len(names) > 1:
            _legend(axes)
    return render(figure, path, image_format)


def _plot_column(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, number: int) -> bool:
    points = [
        (row["epoch"], float(row[name]))
        for row in rows
        if isinstance(row.get(name), int | float) and math.isfinite(row[name])
    ]
    if points:
        # Few points (MAP is measured now and then) need a mark to be seen.
        marks = _marker(number) if len(points) <= 25 else {}
        axes.plot(*zip(*points, strict=True), label=name, **_line(number), **marks)
    return bool(points)


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return an empty figure and its axes, row by row; sizes in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=layout, facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def _line(number: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.9,
        "solid_capstyle": "round",
    }


def _marker(number: int) -> dict[str, Any]:
    return {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 5, "markeredgecolor": "white"}


def dress(axes: Any, title: str, x_label: str, y_label: str) -> None:
    """Give axes their title, labels, grid and colours: the look of all our figures."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x_label, fontsize=9.5, color=INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(visible=True, color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, handlelength=2.6)


def render(figure: Any, path: Path | None = None, image_format: str = "png") -> bytes:
    """Return the picture of a figure, and write it to `path`, whose ending decides the format."""
    chosen = image_format if path is None else path.suffix.removeprefix(".").lower()
    if chosen not in _FORMATS:
        raise ConfigError(f"Cannot draw a {chosen!r} picture. Use one of: {', '.join(_FORMATS)}.")
    buffer = io.BytesIO()
    # Without the date two runs over the same numbers give the same bytes (PNG).
    figure.savefig(buffer, format=chosen, metadata={"Date": None} if chosen == "svg" else None)
    if path is not None:
        path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def _require(values: Mapping[str, Any] | Sequence[Any]) -> None:
    if not values:
        raise ShapeError("There is nothing to plot: no scores or rows were given. Evaluate first.")
