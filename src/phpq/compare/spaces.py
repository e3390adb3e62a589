"""The images of a comparison as arrays: labels of gallery and queries, and their embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm, normalise_sub_vectors
from phpq.data.images import draw_per_class
from phpq.evaluation.search import ClassSplit

_BLOCK = 20_000  # synthetic rows at once
_NOISE_VECTORS = 1024  # that are drawn; rows share them
NOISE = 0.3  # in deviations inside a class


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Space:
    """One embedding of all images."""

    name: str  # as tables name it
    gallery: FloatArray  # (N, D) float32
    queries: FloatArray  # (Q, D) float32
    labels: str = "none"  # that it was learned from
    minutes: float | None = 0.0  # of learning; None if unknown
    codebooks: Codebooks | None = None  # that were learned with it
    norm: QueryNorm = "raw"  # of queries, for these codebooks

    def float_rows(self, rows: FloatArray) -> FloatArray:
        """Return rows whose inner products with `float_queries` are the scores of float search."""
        return rows if self.codebooks is None else self.codebooks.vectors(rows)

    def float_queries(self, queries: FloatArray) -> FloatArray:
        """Return queries likewise."""
        return (
            queries if self.codebooks is None else self.codebooks.vectors(queries, norm=self.norm)
        )

    def float_space(self) -> Space:
        """Return the same space with rows and queries as float search multiplies them."""
        return replace(
            self,
            gallery=self.float_rows(self.gallery),
            queries=self.float_queries(self.queries),
            codebooks=None,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Images:
    """Gallery and queries, as class numbers."""

    gallery: IntArray  # (N,)
    queries: IntArray  # (Q,)
    gallery_ids: tuple[str, ...]  # (N,)
    class_names: tuple[str, ...]
    unseen: NDArray[np.bool_]  # (C,) classes that no model has learned

    @property
    def seen_queries(self) -> IntArray:
        """Queries of learned classes."""
        return np.flatnonzero(~self.unseen[self.queries])

    @property
    def unseen_queries(self) -> IntArray:
        """Queries of unseen classes."""
        return np.flatnonzero(self.unseen[self.queries])

    def names(self, numbers: IntArray) -> list[str | None]:
        """Return the labels of class numbers."""
        return [self.class_names[number] for number in numbers.tolist()]

    def validation_split(self, most: int = 6000) -> tuple[IntArray, ClassSplit] | None:
        """Return some rows of the gallery, and which of them are queries to choose a setting by.

        The queries of the comparison are not used. A fifth of each class are queries; None if no
        class has two images. Large galleries are reduced to some classes, of about `most` rows.
        """
        sizes = np.bincount(self.gallery, minlength=len(self.class_names))
        counts = np.where(sizes > 1, np.maximum(1, sizes // 5), 0)
        drawn = draw_per_class(self.gallery_ids, self.gallery, counts, seed=1)
        if not drawn.any():
            return None
        order = np.random.default_rng(0).permutation(len(sizes))
        kept = order[np.cumsum(sizes[order]) <= max(most, int(sizes[order[0]]))]
        rows = np.flatnonzero(np.isin(self.gallery, kept))
        if not drawn[rows].any():
            rows = np.arange(len(self.gallery))
        return rows, ClassSplit(np.zeros(len(rows), bool), drawn[rows])


def unit_space(name: str, gallery: FloatArray, queries: FloatArray, **facts: object) -> Space:
    """Return a space of unit vectors, zero-padded so that codes of 16 bytes divide it."""
    parts = [
        np.pad(normalise_sub_vectors(rows, 1), ((0, 0), (0, -rows.shape[1] % 16)))
        for rows in (gallery, queries)
    ]
    return Space(name=name, gallery=parts[0], queries=parts[1], **facts)  # type: ignore[arg-type]


def synthetic_rows(
    rows: FloatArray, labels: IntArray, count: int, *, seed: int = 0
) -> Iterator[tuple[FloatArray, IntArray]]:
    """Yield a gallery of `count` rows in blocks: the real ones, then synthetic ones.

    A synthetic row interpolates two rows of one class, with `NOISE` of the deviation inside
    classes; its length is interpolated likewise.
    """
    yield rows[:count], labels[:count]
    rng = np.random.default_rng(seed)
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(labels.max() + 2))
    sizes, spread = np.diff(edges), _spread(rows, labels)
    noises = (NOISE * rng.standard_normal((_NOISE_VECTORS, rows.shape[1])) * spread).astype(
        np.float32
    )
    lengths = np.linalg.norm(rows, axis=1)
    for start in range(len(rows), count, _BLOCK):
        size = min(_BLOCK, count - start)
        first = rng.integers(0, len(rows), size)
        own = labels[first]
        second = order[edges[own] + rng.integers(0, sizes[own])]
        share = rng.random(size, dtype=np.float32)[:, None]
        mixed = rows[first] * share
        mixed += rows[second] * (1 - share)
        mixed += noises[rng.integers(0, _NOISE_VECTORS, size)]
        wanted = lengths[first] * share[:, 0] + lengths[second] * (1 - share[:, 0])
        mixed *= (wanted / np.maximum(np.linalg.norm(mixed, axis=1), 1e-12))[:, None]
        yield mixed, own


def _spread(rows: FloatArray, labels: IntArray) -> FloatArray:
    """Return the standard deviation (D,) inside classes."""
    sums = np.zeros((labels.max() + 1, rows.shape[1]), np.float32)
    np.add.at(sums, labels, rows)
    sizes = np.bincount(labels, minlength=len(sums))
    apart = rows - (sums / np.maximum(sizes, 1)[:, None])[labels]
    result: FloatArray = np.sqrt(np.square(apart).mean(axis=0))
    return result
