"""Pictures made of images: queries with their hits, and plain grids.

A right hit has a green frame and a tick, a wrong one a red frame and a cross, so that the picture
does not depend on colour alone. Images come from callables; a PNG comes out.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Name and judge the hits of some queries.

    Args:
        ids: (Q, k) the rows that a search with these queries found; -1 is none.
        queries: (Q,) their numbers among all query images.
        query_labels: (all queries,) integers, indices into `class_names`.
        gallery_labels: (N,) integers.
        class_names: Name of each label.
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
    """Draw at least one row of `hit_rows`, with images by number in any size; returns a PNG.

    `tile` is the side of an image in the picture, pixels.
    """
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
        _draw_tile(canvas, query_image(row.query), (_MARGIN, y), tile=tile, right=None)
        _draw_name(draw, row.query_class, (_MARGIN, y + tile + 4), width=tile, font=font)
        hits = zip(row.hits, row.hit_classes, row.right, strict=True)
        for column, (hit, name, right) in enumerate(hits):
            x = left + column * step
            _draw_tile(canvas, gallery_image(hit), (x, y), tile=tile, right=right)
            _draw_name(draw, name, (x, y + tile + 4), width=tile, font=font)
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
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _draw_tile(
    canvas: Image, image: Image, corner: tuple[int, int], *, tile: int, right: bool | None
) -> None:
    """Paste one image in its frame; `right` is None for the query, which is not judged."""
    from PIL import ImageDraw, ImageOps

    colour = _NEUTRAL if right is None else _RIGHT if right else _WRONG
    inner = tile - 2 * _FRAME
    x, y = corner
    canvas.paste(colour, (x, y, x + tile, y + tile))
    canvas.paste(ImageOps.fit(image.convert("RGB"), (inner, inner)), (x + _FRAME, y + _FRAME))
    if right is not None:
        draw, side = ImageDraw.Draw(canvas), max(16, tile // 5)
        draw.rectangle((x + tile - side, y, x + tile - 1, y + side - 1), fill=colour)
        centre = (x + tile - side / 2, y + side / 2)
        draw.text(centre, _TICK if right else _CROSS, font=_font(side), fill="white", anchor="mm")


def _draw_name(draw: Any, name: str, corner: tuple[int, int], *, width: int, font: Any) -> None:
    x, y = corner
    for number, line in enumerate(_wrap(name.replace("_", " "), width=width, font=font)):
        draw.text((x, y + number * (_TEXT + 3)), line, font=font, fill=_INK)


def _wrap(text: str, *, width: int, font: Any) -> list[str]:
    """Break a name into at most _LINES lines that fit; what is too long ends in an ellipsis."""
    for letters in range(width, 0, -1):
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
