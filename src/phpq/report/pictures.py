"""Pictures: images or numbers in, a PNG out.

A right hit has a green frame and a tick, a wrong one a red frame and a cross, so that the picture
does not depend on colour alone. Plots have one style and are built as objects: no pyplot and no
global style, so nothing else is disturbed. matplotlib is imported when something is drawn: machines
that only train do without.
"""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from phpq.codes import IntArray
from phpq.errors import ShapeError

if TYPE_CHECKING:
    from PIL.Image import Image

_RIGHT, _WRONG, _NEUTRAL = "#1b8a4b", "#c62f3b", "#3a4450"
_INK, _FAINT = "#22282f", "#6b7683"
_FRAME, _GAP, _MARGIN = 4, 10, 16  # pixels
_TEXT = 13  # font size, pixels
_LINES = 2  # lines that a class name may take
_TICK, _CROSS = "\N{HEAVY CHECK MARK}", "\N{HEAVY BALLOT X}"

# Told apart by people who do not see all colours; markers and dashes tell them apart as well.
_OURS = "#0b6e99"
_COLOURS = ("#c8553d", "#7a5195", "#2f8f5b", "#b8860b", "#4a4e69", "#5b8fb9", "#a23b72", "#8a8d3f")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
_DASHES = ("-", "--", "-.", ":")
_GRID = "#d8dde3"
_DPI = 160
_FEW = 25  # points of a line that are all marked

Axis = Literal["ticks", "log", "linear"]


@dataclass(frozen=True, slots=True)
class HitRow:
    """One query and what was found for it."""

    query: int  # number of the query image
    query_class: str  # as shown
    hits: tuple[int, ...]  # numbers of the gallery images, best first
    hit_classes: tuple[str, ...]  # as shown
    right: tuple[bool, ...]  # which of them have the query's class


def spread_queries(labels: IntArray, count: int) -> list[int]:
    """Pick the first query of `count` classes spread evenly over all, before a result is seen."""
    classes, first = np.unique(labels, return_index=True)
    places = np.linspace(0, len(classes) - 1, min(count, len(classes)))
    return [int(first[round(place)]) for place in places]


def hit_rows(
    ids: IntArray,
    queries: Sequence[int],
    *,
    query_labels: IntArray,
    gallery_labels: IntArray,
    class_names: Sequence[str],
) -> tuple[HitRow, ...]:
    """Name and judge the hits of some queries, given by their numbers among all query images.

    `ids` (Q, k) are the rows that a search with these queries found; -1 is none. Labels, of all
    queries and of the gallery, are indices into `class_names`.
    """
    if len(queries) != len(ids):
        raise ShapeError(
            f"{len(queries)} queries but {len(ids)} rows of hits; expected as many. "
            "Search with exactly the queries to be shown."
        )
    rows = []
    for query, found in zip(queries, ids, strict=True):
        label = int(query_labels[query])
        hits = tuple(int(row) for row in found if row >= 0)
        labels = [int(gallery_labels[row]) for row in hits]
        classes = tuple(class_names[other] for other in labels)
        right = tuple(other == label for other in labels)
        rows.append(HitRow(int(query), class_names[label], hits, classes, right))
    return tuple(rows)


def draw_hits(
    rows: Sequence[HitRow],
    *,
    query_image: Callable[[int], Image],
    gallery_image: Callable[[int], Image],
    tile: int = 112,
) -> bytes:
    """Draw at least one row of `hit_rows`, each image `tile` pixels wide; returns a PNG."""
    from PIL import Image, ImageDraw

    if not rows:
        raise ShapeError("There are no queries to draw. Give at least one row of hits.")
    columns = max(len(row.hits) for row in rows)
    step = tile + _GAP
    left = _MARGIN + step + _GAP  # where the hits begin, a little apart from the query
    row_height = tile + _LINES * (_TEXT + 3) + _GAP + 6
    top = _MARGIN + _TEXT + 8
    size = (left + columns * step - _GAP + _MARGIN, top + len(rows) * row_height + _MARGIN - _GAP)
    canvas = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(canvas), _font(_TEXT)
    draw.text((_MARGIN, _MARGIN), "query", font=font, fill=_FAINT)
    for column in range(columns):
        draw.text((left + column * step, _MARGIN), str(column + 1), font=font, fill=_FAINT)
    for number, row in enumerate(rows):
        y = top + number * row_height
        query = query_image(row.query)
        _draw_tile(canvas, query, row.query_class, (_MARGIN, y), tile=tile, right=None)
        hits = zip(row.hits, row.hit_classes, row.right, strict=True)
        for column, (hit, name, right) in enumerate(hits):
            corner = (left + column * step, y)
            _draw_tile(canvas, gallery_image(hit), name, corner, tile=tile, right=right)
    return _png(canvas)


def draw_grid(rows: Sequence[Sequence[Image]], *, gap: int = 6) -> bytes:
    """Draw square images of one size in rows, `gap` pixels apart; returns a PNG."""
    from PIL import Image

    step = rows[0][0].width + gap
    size = (max(map(len, rows)) * step - gap, len(rows) * step - gap)
    canvas = Image.new("RGB", size, "white")
    for number, row in enumerate(rows):
        for column, image in enumerate(row):
            canvas.paste(image, (column * step, number * step))
    return _png(canvas)


def _png(image: Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _draw_tile(
    canvas: Image, image: Image, name: str, place: tuple[int, int], *, tile: int, right: bool | None
) -> None:
    """Paste one image in its frame, its name below; `right` is None for a query: not judged."""
    from PIL import ImageDraw, ImageOps

    colour = _NEUTRAL if right is None else _RIGHT if right else _WRONG
    inner = tile - 2 * _FRAME
    x, y = place
    canvas.paste(colour, (x, y, x + tile, y + tile))
    canvas.paste(ImageOps.fit(image.convert("RGB"), (inner, inner)), (x + _FRAME, y + _FRAME))
    draw, font = ImageDraw.Draw(canvas), _font(_TEXT)
    for number, line in enumerate(_wrap(name.replace("_", " "), width=tile, font=font)):
        draw.text((x, y + tile + 4 + number * (_TEXT + 3)), line, font=font, fill=_INK)
    if right is not None:
        side = max(16, tile // 5)
        draw.rectangle((x + tile - side, y, x + tile - 1, y + side - 1), fill=colour)
        centre = (x + tile - side / 2, y + side / 2)
        draw.text(centre, _TICK if right else _CROSS, font=_font(side), fill="white", anchor="mm")


def _wrap(text: str, *, width: int, font: Any) -> list[str]:
    """Break a name into at most _LINES lines that fit; what is too long ends in an ellipsis."""
    for letters in range(min(width, len(text)), 0, -1):
        lines = textwrap.wrap(text, letters, max_lines=_LINES, placeholder="…")
        if all(font.getlength(line) <= width for line in lines):
            return lines
    return []


@functools.cache
def _font(size: int) -> Any:
    # matplotlib carries DejaVu Sans, which has far more letters than Pillow's own font.
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)


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
    """Draw a line, y by x, for each name in the legend; a name with one point is a mark.

    Labels are those of the x axis and of the y axis; the name `strong` stands out. `x_axis` "ticks"
    marks every x that occurs, on a logarithmic axis if they span a factor of 20; "log" and "linear"
    leave the ticks to matplotlib. `y_range` are the ends of the y axis; None fits them to the
    points. `wide` is a larger picture with its legend beside it, for many names.
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
    return _figure_png(figure)


# What an epoch records besides the terms of its loss, see `phpq.training`.
_COLUMNS = (
    "epoch loss learning_rate seconds images_per_second distinct_codes dead_codewords entropy_bits "
    "collapsing map map_learned gallery_distinct_codes"
)


def loss_terms(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the terms of a method's loss in a row of metrics.jsonl."""
    return [name for name in row if name not in _COLUMNS.split()]


def plot_training(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw a run over its epochs: losses, MAP, learning rate, and the health of the codebooks.

    Takes the rows of metrics.jsonl, each with "epoch"; a value that a row lacks is left out.
    """
    _require(rows)
    terms = loss_terms(rows[-1])
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
    return _figure_png(figure)


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
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)


def _legend(axes: Any, **place: Any) -> None:
    axes.legend(**({"frameon": False, "fontsize": 9, "labelcolor": _INK} | place))


def _figure_png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _require(values: Mapping[str, Any] | Sequence[Any]) -> None:
    if not values:
        raise ShapeError("There is nothing to plot: no scores or rows were given. Evaluate first.")
