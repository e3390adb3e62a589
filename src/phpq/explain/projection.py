"""A gallery as a map: codes in, points in the plane out, near each other where codes look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, group_codes
from phpq.errors import ConfigError, ShapeError

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GalleryMap:
    """Images of a gallery in the plane.

    Attributes:
        ids: The n images that are shown, in the order of the gallery.
        labels: Their classes, if they have one.
        points: (n, 2) float32 in [-1, 1], x to the right and y upwards, both in one scale.
        method: How the points were found.
        sampled: Whether the gallery has more images than are shown.
    """

    ids: tuple[str, ...]
    labels: tuple[str | None, ...]
    points: FloatArray
    method: str
    sampled: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        rows = zip(self.ids, self.labels, self.points.tolist(), strict=True)
        points = [{"id": id, "label": label, "x": x, "y": y} for id, label, (x, y) in rows]
        return {"points": points, "method": self.method, "sampled": self.sampled}


def gallery_map(
    codes: CodeArray,
    codebooks: Codebooks,
    ids: Sequence[str],
    labels: Sequence[str | None],
    *,
    limit: int = 2000,
    seed: int = 0,
) -> GalleryMap:
    """Draw a map of a gallery; the same gallery gives the same map.

    For a gallery whose ids and labels are not all in memory: `sample_rows`, read these rows, and
    `project_codes`.

    Args:
        codes: (N, M) uint8.
        codebooks: Those of the codes.
        ids: N names.
        labels: N classes, None where there is none.
        limit: Most points; more images are sampled.
        seed: Of the sample.
    """
    if not len(codes) == len(ids) == len(labels):
        raise ShapeError(
            f"{len(codes)} codes, {len(ids)} ids and {len(labels)} labels; expected one id and "
            "one label (or None) a code."
        )
    rows = sample_rows(len(codes), limit=limit, seed=seed)
    return GalleryMap(
        ids=tuple(ids[row] for row in rows),
        labels=tuple(labels[row] for row in rows),
        points=project_codes(codebooks, codes[rows]),
        method="pca",
        sampled=len(rows) < len(codes),
    )


def sample_rows(count: int, *, limit: int, seed: int = 0) -> IntArray:
    """Choose rows of a gallery at random, without repeats.

    Args:
        count: Rows there are.
        limit: Most rows to choose, at least 1.
        seed: Another seed chooses others.

    Returns:
        (min(count, limit),) int64, ascending.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit!r} is not allowed: it must be at least 1.")
    if count <= limit:
        return np.arange(count, dtype=np.int64)
    chosen = np.random.default_rng(seed).choice(count, size=limit, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)


def project_codes(codebooks: Codebooks, codes: CodeArray) -> FloatArray:
    """Project codes on the two directions in which what they decode to varies most (PCA).

    Args:
        codebooks: Those of the codes.
        codes: (n, M) uint8; memory is 4 D bytes for each distinct one.

    Returns:
        (n, 2) float32 in [-1, 1], centred, both axes in one scale; equal codes have equal points.
    """
    groups = group_codes(codes)
    if not len(codes):
        return np.zeros((0, 2), np.float32)
    vectors = codebooks.decode(groups.codes).astype(np.float64)  # (g, D)
    weights = groups.sizes / len(codes)
    vectors -= weights @ vectors
    # The left singular vectors of the weighted rows, from the smaller of the two products.
    scaled = vectors * np.sqrt(weights)[:, None]
    if len(scaled) <= scaled.shape[1]:
        values, left = _two_largest(scaled @ scaled.T)
        axes = scaled.T @ (left / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny)))
    else:
        values, axes = _two_largest(scaled.T @ scaled)
    points = vectors @ np.where(values > 1e-12, axes, 0.0)  # no direction at all: all in one point
    # An axis has no sign of its own: let the farther end be on the positive side.
    farthest = np.abs(points).argmax(axis=0)
    points *= np.where(points[farthest, [0, 1]] < 0, -1.0, 1.0)
    points /= max(float(np.abs(points).max()), np.finfo(np.float64).tiny)
    return points.astype(np.float32)[groups.group_of_row]


def _two_largest(matrix: Doubles) -> tuple[Doubles, Doubles]:
    """Return the 2 largest eigenvalues of a symmetric (n, n), largest first, and (n, 2) vectors."""
    from scipy.linalg import eigh

    size = len(matrix)
    if size == 1:
        return np.array([matrix[0, 0], 0.0]), np.array([[1.0, 0.0]])
    values, vectors = eigh(matrix, subset_by_index=[size - 2, size - 1])
    return values[::-1], vectors[:, ::-1]
