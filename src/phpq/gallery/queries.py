"""Composes one query of photos, boxes on them, and examples from the gallery.

    query = mean(like) + AWAY * (mean(like) - mean(unlike))

Photos and positive examples weigh the same. The result is one embedding, so that search, re-ranking
and verdicts are the same for all queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import Codebooks, FloatArray, QueryNorm, check_embeddings
from phpq.data.boxes import Box, cut_out
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from phpq.gallery.view import GalleryView, Page
    from phpq.hits import Found

AWAY = 0.25  # weight of negative examples
Photo = str | Path | Image.Image
Boxes = Box | Sequence[Box | None] | None  # of one photo, or one each; None: the whole photo


@dataclass(frozen=True, slots=True, eq=False)
class ComposedQuery:
    """A query, ready for a search."""

    query: FloatArray  # (D,)
    photos: FloatArray  # (D,) the same without examples, if there are photos
    leave_out: tuple[int, ...]  # places of the examples, which are not to be found


def compose_query(
    view: GalleryView, photos: FloatArray, more: Sequence[str] = (), less: Sequence[str] = ()
) -> ComposedQuery:
    """Make one query of embedded photos (n, D) and of ids of positive and negative examples.

    Examples count by their kept embeddings, or by their decoded codes.
    """
    more, less = list(dict.fromkeys(more)), list(dict.fromkeys(less))
    if not len(photos) and not more:
        seen = f"only what it is not like ({less[0]!r})" if less else "nothing"
        raise ConfigError(
            f"The query names {seen}: give a photo, or an image of the gallery that it is like."
        )
    if both := [name for name in more if name in less]:
        raise ConfigError(f"{both[0]!r} is given as like and as unlike the query; give it once.")
    found = [view.find(name) for name in (*more, *less)]
    rows = [view.query_of(record) for _, record in found]
    mean = QueryMean(view.codebooks, view.store.manifest.query_norm)
    like, unlike = [*photos, *rows[: len(more)]], rows[len(more) :]
    query = mean.away(like, unlike) if unlike else mean.of(like)
    alone = mean.of([*photos]) if len(photos) else query
    return ComposedQuery(query, alone, tuple(place for place, _ in found))


def search_view(
    view: GalleryView,
    page: Page,
    query: Any,
    box: Boxes = None,
    more: Sequence[str] = (),
    less: Sequence[str] = (),
) -> Found:
    """Do as `Gallery.search`, in one view."""
    composed = compose_query(view, embed_photos(view, query, box), more, less)
    return view.search(composed.query, page, leave_out=composed.leave_out)


@dataclass(frozen=True, slots=True, eq=False)
class QueryMean:
    """Means of embeddings that are normalised first, so that each weighs the same."""

    books: Codebooks
    norm: QueryNorm
    step: float = AWAY

    def of(self, rows: Sequence[FloatArray]) -> FloatArray:
        """Return the mean (D,) of rows (D,); a single row is returned as it is."""
        if len(rows) == 1:
            return rows[0]
        return self._mean(rows).astype(np.float32)

    def away(self, like: Sequence[FloatArray], unlike: Sequence[FloatArray]) -> FloatArray:
        """Return the mean of some, moved away from that of others."""
        near, far = self._mean(like), self._mean(unlike)
        return (near + self.step * (near - far)).astype(np.float32)

    def _mean(self, rows: Sequence[FloatArray]) -> NDArray[np.float64]:
        normalised = self.books.normalised(np.stack(rows), norm=self.norm)
        return np.asarray(normalised.mean(axis=0, dtype=np.float64))


def boxes_for(box: Boxes, count: int) -> list[Box | None]:
    """Return a box for each of `count` photos, None for the whole photo."""
    if box is None:
        return [None] * count
    numbers = len(box) == 4 and all(isinstance(edge, int | float) for edge in box)
    boxes = cast("list[Box | None]", [tuple(box)] if numbers else list(box))
    if len(boxes) != count:
        given = "one box" if len(boxes) == 1 else f"{len(boxes)} boxes"
        raise ConfigError(
            f"There {'is' if len(boxes) == 1 else 'are'} {given} for {count} photos: give one for "
            "each, in their order, and None (whole, in commands and requests) for a photo that is "
            "taken as it is."
        )
    return boxes


def embed_photos(view: GalleryView, query: Any, box: Boxes = None) -> FloatArray:
    """Embed a query, (n, D): None, a photo, several photos, or embeddings."""
    if isinstance(query, np.ndarray):
        if box is not None:
            raise ConfigError("A box needs the photo that it is drawn on, not an embedding.")
        return check_embeddings("query", np.atleast_2d(query), view.codebooks.embedding_dim)
    if query is None:
        boxes_for(box, 0)
        return np.empty((0, view.codebooks.embedding_dim), np.float32)
    photos = [query] if isinstance(query, str | Path | Image.Image) else list(query)
    most = view.model.card.config.data.max_pixels
    pairs = zip(photos, boxes_for(box, len(photos)), strict=True)
    return view.embed([_cut(photo, one, most) for photo, one in pairs])


def _cut(photo: Photo, box: Box | None, most: int) -> Photo:
    if box is None:
        return photo
    return cut_out(Path(photo) if isinstance(photo, str) else photo, box, max_pixels=most)
