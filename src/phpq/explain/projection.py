"""A gallery as a map: codes in, points in the plane out, near each other where codes look alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, group_codes
from phpq.errors import ConfigError

Doubles = NDArray[np.float64]


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
