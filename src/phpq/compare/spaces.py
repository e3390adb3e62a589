"""The images of a comparison as arrays: a gallery, queries, and where each embedding puts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray, IntArray, QueryNorm, normalise_sub_vectors
from phpq.data.images import draw_per_class
from phpq.evaluation.kinds import KindSplit

_BLOCK = 20_000  # made-up rows at once
_NOISES = 1024  # noise is drawn so often, and then taken again
NOISE = 0.3  # of what varies inside a class


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Space:
    """One embedding of all images."""

    name: str  # as tables name it
    gallery: FloatArray  # (N, D) float32
    queries: FloatArray  # (Q, D) float32
    labels: str = "none"  # that learning it took
    minutes: float | None = 0.0  # of learning; None where nobody knows
    codebooks: Codebooks | None = None  # that were learned with it
    norm: QueryNorm = "raw"  # of queries under these codebooks

    def place_rows(self, rows: FloatArray) -> FloatArray:
        """Return rows whose inner products with placed queries are the scores of float search."""
        return rows if self.codebooks is None else self.codebooks.vectors(rows)

    def place_queries(self, queries: FloatArray) -> FloatArray:
        """Return queries likewise."""
        return (
            queries if self.codebooks is None else self.codebooks.vectors(queries, norm=self.norm)
        )

    def placed(self) -> Space:
        """Return the space of float search: inner products of its rows and queries as they are."""
        return replace(
            self,
            gallery=self.place_rows(self.gallery),
            queries=self.place_queries(self.queries),
            codebooks=None,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Images:
    """What is searched and what asks, by class numbers."""

    gallery: IntArray  # (N,)
    queries: IntArray  # (Q,)
    gallery_ids: tuple[str, ...]  # (N,)
    class_names: tuple[str, ...]
    new: NDArray[np.bool_]  # (C,) classes that no model has learned

    @property
    def seen_queries(self) -> IntArray:
        """Queries of learned classes."""
        return np.flatnonzero(~self.new[self.queries])

    @property
    def unseen_queries(self) -> IntArray:
        """Queries of classes that no model has learned."""
        return np.flatnonzero(self.new[self.queries])

    def names(self, numbers: IntArray) -> list[str | None]:
        """Return the labels of class numbers."""
        return [self.class_names[number] for number in numbers.tolist()]

    def choice(self, most: int = 6000) -> tuple[IntArray, KindSplit] | None:
        """Return some rows of the gallery, and which of them ask when a setting is chosen.

        The queries of the comparison take no part. A fifth of each class asks; None if no class has
        two images. Of large galleries `most` rows are taken, of as many classes as that allows.
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
        return rows, KindSplit(np.zeros(len(rows), bool), drawn[rows])


def unit_space(name: str, gallery: FloatArray, queries: FloatArray, **facts: object) -> Space:
    """Return a space of cosines; zeros are added until product codes of 16 bytes can divide it."""
    parts = [
        np.pad(normalise_sub_vectors(rows, 1), ((0, 0), (0, -rows.shape[1] % 16)))
        for rows in (gallery, queries)
    ]
    return Space(name=name, gallery=parts[0], queries=parts[1], **facts)  # type: ignore[arg-type]


def made_rows(
    rows: FloatArray, labels: IntArray, count: int, *, seed: int = 0
) -> Iterator[tuple[FloatArray, IntArray]]:
    """Give a gallery of `count` rows by blocks: the real ones, then made-up ones.

    A made-up row lies between two rows of one class, with noise of a third of what varies inside
    classes; its length is theirs, mixed likewise.
    """
    yield rows[:count], labels[:count]
    rng = np.random.default_rng(seed)
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(labels.max() + 2))
    sizes, spread = np.diff(edges), _spread(rows, labels)
    noises = (NOISE * rng.standard_normal((_NOISES, rows.shape[1])) * spread).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    for start in range(len(rows), count, _BLOCK):
        size = min(_BLOCK, count - start)
        first = rng.integers(0, len(rows), size)
        own = labels[first]
        second = order[edges[own] + rng.integers(0, sizes[own])]
        share = rng.random(size, dtype=np.float32)[:, None]
        mixed = rows[first] * share
        mixed += rows[second] * (1 - share)
        mixed += noises[rng.integers(0, _NOISES, size)]
        wanted = lengths[first] * share[:, 0] + lengths[second] * (1 - share[:, 0])
        mixed *= (wanted / np.maximum(np.linalg.norm(mixed, axis=1), 1e-12))[:, None]
        yield mixed, own


def _spread(rows: FloatArray, labels: IntArray) -> FloatArray:
    """Return (D,) the deviation inside classes."""
    sums = np.zeros((labels.max() + 1, rows.shape[1]), np.float32)
    np.add.at(sums, labels, rows)
    sizes = np.bincount(labels, minlength=len(sums))
    apart = rows - (sums / np.maximum(sizes, 1)[:, None])[labels]
    result: FloatArray = np.sqrt(np.square(apart).mean(axis=0))
    return result
