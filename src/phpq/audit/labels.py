"""Label errors: embeddings and labels in, the probability that each label is wrong out. numpy.

Rows are classified by class means in a space that is whitened within classes. Both are fitted by
cross-validation, so that a label is no evidence for itself; a second round leaves out the labels
that the first one found wrong. The probabilities follow from a mixture model of two parameters: a
share of the labels is wrong, and uniformly distributed over the other classes; the rest is
distributed as the softmax of scores, with one sharpness (inverse temperature) for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phpq.additive.codebooks import class_means, sums_by, unit_rows
from phpq.additive.probabilities import softmax
from phpq.codes import FloatArray, IntArray

LEAST_ROWS, LEAST_CLASSES = 40, 2  # labelled rows, of classes with two rows or more
# Expected share of wrong labels among the flagged ones. Why: docs/decisions/0020.
FLAGGED_PRECISION = 0.955
_FOLDS = (5, 10)  # of the first and of the second round
_DIMS = 512  # principal axes that are kept: more cost time, and tell little of a label
_SHRINK = 0.3  # share of the mean variance that is added to each variance within classes
_SHARPNESS = np.geomspace(4, 128, 31)  # candidates
_SCORES = 2_000_000  # most scores that the mixture is fitted to
_STEPS = 60  # of expectation maximization
_BLOCK = 4096  # rows converted to float64 at once
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class LabelErrors:
    """What cross-validation says of the labels of n rows."""

    likely: FloatArray  # (n, C): probability of each class by its scores, whatever the label
    wrong: Floats  # (n,): probability that the label is wrong; 0 if no other row has the label
    flagged: Bools  # (n,): labels that are reported as wrong
    share: float  # of wrong labels, as fitted


def find_label_errors(
    rows: FloatArray, classes: IntArray, count: int, copy_groups: IntArray | None = None
) -> LabelErrors | None:
    """Judge the labels of rows (n, D): classes (n,) are numbers below `count`, or -1 for none.

    Rows with one number in `copy_groups` (n,) are copies of one picture, and are never evidence for
    each other. None if there are too few labels.
    """
    sizes = np.bincount(classes[classes >= 0], minlength=count)
    if (sizes > 1).sum() < LEAST_CLASSES or sizes[sizes > 1].sum() < LEAST_ROWS:
        return None
    judged = (classes >= 0) & (sizes[classes] > 1)
    rows = _reduce_dims(rows)
    trusted, wrong = judged, np.zeros(len(rows))
    for seed, folds in enumerate(_FOLDS):
        fold = _folds(classes, folds, seed, copy_groups)
        scores = _scores(rows, classes, count, trusted, fold)
        sharpness, share = _fit_mixture(scores[judged], classes[judged])
        wrong = np.zeros(len(rows))
        wrong[judged] = _error_probabilities(
            _label_probabilities(scores[judged], classes[judged], sharpness), share, count
        )
        trusted = judged & (wrong < 0.5)
    scores *= sharpness
    return LabelErrors(softmax(scores), wrong, _flag(wrong), share)


def _reduce_dims(rows: FloatArray) -> FloatArray:
    """Project rows on their first `_DIMS` principal axes, if they have more dimensions."""
    if rows.shape[1] <= _DIMS:
        return rows
    rows = rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    square = np.zeros((rows.shape[1],) * 2)
    for part in _blocks(np.arange(len(rows))):
        square += rows[part].astype(np.float64).T @ rows[part]
    axes = np.linalg.eigh(square)[1][:, ::-1][:, :_DIMS]
    return rows @ axes.astype(np.float32)


def _flag(wrong: Floats) -> Bools:
    """Flag the labels that are most probably wrong, down to the expected `FLAGGED_PRECISION`."""
    order = np.argsort(-wrong, kind="stable")
    expected = np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1)
    flagged = np.zeros(len(wrong), np.bool_)
    flagged[order[: int((expected >= FLAGGED_PRECISION).sum())]] = True
    return flagged


def _folds(
    classes: IntArray, folds: int, seed: int, copy_groups: IntArray | None = None
) -> IntArray:
    """Distribute the rows of each class over folds, (n,) int64; copies go to the same fold."""
    generator = np.random.default_rng(seed)
    fold = np.empty(len(classes), np.int64)
    for number in np.unique(classes):
        mine = generator.permutation(np.flatnonzero(classes == number))
        fold[mine] = (np.arange(len(mine)) + generator.integers(folds)) % folds
    if copy_groups is not None:
        _, first, numbers = np.unique(copy_groups, return_index=True, return_inverse=True)
        fold = fold[first[numbers]]
    return fold


def _scores(
    rows: FloatArray, classes: IntArray, count: int, trusted: Bools, fold: IntArray
) -> FloatArray:
    """Return the cosines (n, C) of rows with class means, both whitened by the other folds."""
    folds = int(fold.max()) + 1
    centre = rows[trusted].mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = rows - centre
    # Moments of each fold: those of all other folds are differences, without reading rows again.
    parts = [_moments(rows, classes, count, trusted & (fold == each)) for each in range(folds)]
    squares, sums, sizes = (sum(part[n] for part in parts) for n in range(3))
    scores = np.empty((len(rows), count), np.float32)
    for each, (own_squares, own_sums, own_sizes) in enumerate(parts):
        left = sizes - own_sizes
        centres = (sums - own_sums) / np.maximum(left, 1)[:, None]
        within = squares - own_squares - (centres * left[:, None]).T @ centres
        within /= max(int(left.sum() - (left > 0).sum()), 1)
        space = _whitener(within)
        kept = trusted & (fold != each)
        means = class_means(_project(rows[kept], space), classes[kept], count)
        held_out = np.flatnonzero(fold == each)
        for part in _blocks(held_out):
            scores[part] = _project(rows[part], space) @ means.T
        # A class without a row in the other folds gets the lowest cosine.
        scores[np.ix_(held_out, np.flatnonzero(left == 0))] = -1
    return scores


def _moments(
    rows: FloatArray, classes: IntArray, count: int, chosen: Bools
) -> tuple[Floats, Floats, IntArray]:
    """Return the sum of outer products (D, D) of some rows, and their sums and counts by class."""
    squares = np.zeros((rows.shape[1],) * 2)
    places = np.flatnonzero(chosen)
    for part in _blocks(places):
        block = rows[part].astype(np.float64)
        squares += block.T @ block
    sums, sizes = sums_by(classes[places], rows[places].astype(np.float64), count)
    return squares, sums.astype(np.float64), sizes


def _whitener(within: Floats) -> FloatArray:
    """Return the map (D, D) under which a shrunk covariance is the identity."""
    level = float(np.trace(within)) / len(within) or 1.0  # constant rows stay as they are
    root = np.linalg.cholesky(within + _SHRINK * level * np.eye(len(within)))
    return np.linalg.inv(root).T.astype(np.float32)


def _project(rows: FloatArray, space: FloatArray) -> FloatArray:
    return unit_rows(rows @ space)


def _blocks(places: IntArray) -> Iterator[IntArray]:
    return (places[start : start + _BLOCK] for start in range(0, len(places), _BLOCK))


def _fit_mixture(scores: FloatArray, classes: IntArray) -> tuple[float, float]:
    """Return the sharpness and the share of wrong labels of maximum likelihood."""
    count = scores.shape[1]
    part = slice(None, None, max(1, scores.size // _SCORES))
    scores, classes = scores[part], classes[part]
    best = (-np.inf, 1.0, 0.0)
    for sharpness in _SHARPNESS.tolist():
        given = _label_probabilities(scores, classes, sharpness)
        share = 0.05
        for _ in range(_STEPS):
            share = float(_error_probabilities(given, share, count).mean())
        chance = (1 - share) * given + share * (1 - given) / (count - 1)
        best = max(best, (float(np.log(chance + 1e-300).sum()), sharpness, share))
    return best[1], best[2]


def _label_probabilities(scores: FloatArray, classes: IntArray, sharpness: float) -> Floats:
    """Return the softmax probability (n,) float64 of the class that each label names."""
    given = np.empty(len(scores))
    for part in _blocks(np.arange(len(scores))):
        block = sharpness * scores[part].astype(np.float64)
        powers = np.exp(block - block.max(axis=1, keepdims=True))
        given[part] = powers[np.arange(len(part)), classes[part]] / powers.sum(axis=1)
    return given


def _error_probabilities(given: Floats, share: float, count: int) -> Floats:
    """Return the posterior probability (n,) float64 that labels are wrong."""
    other = share * (1 - given) / (count - 1)
    found: Floats = other / ((1 - share) * given + other + 1e-300)
    return found
