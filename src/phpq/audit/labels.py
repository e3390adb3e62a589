"""Which labels are doubtful: embeddings and labels in, how likely each label is wrong out. numpy.

A label must not vouch for itself: rows are told by class means, in a space whitened within classes,
that were fitted without them, and in a second round without the labels that the first one doubts.
How likely a label is wrong follows from a mixture with two unknowns, which are fitted to all labels
at once: a share of the labels is wrong and as good as any other, the rest is as likely as the means
say, with one sharpness for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phpq.additive.codebooks import class_means, sums_by, unit_rows
from phpq.additive.probabilities import softmax
from phpq.codes import FloatArray, IntArray

LEAST_ROWS, LEAST_CLASSES = 40, 2  # labelled rows, and classes of two at least; of fewer: nothing
# Of the labels that are named, this share is expected to be wrong. Why: docs/decisions/0020.
NAMED_WRONG = 0.955
_FOLDS = (5, 10)  # of the first and of the second round
_DIMS = 512  # directions in which rows vary most; others cost much, and tell little of a label
_SHRINK = 0.3  # of the mean variance, added to every variance within classes
_SHARPNESS = np.geomspace(4, 128, 31)
_SCORES = 2_000_000  # of classes that the sharpness is chosen by
_STEPS = 60  # of expectation and maximization
_BLOCK = 4096  # rows
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Doubts:
    """What n rows look like to class means that were fitted without them."""

    likely: FloatArray  # (n, C): how likely each class is, whatever the label says
    wrong: Floats  # (n,): how likely the label is wrong; 0 where there is none to judge
    judged: Bools  # (n,): rows whose label others have too
    named: Bools  # (n,): labels that are named as wrong
    share: float  # of wrong labels, as it was fitted

    @property
    def best(self) -> IntArray:
        """The likeliest class of each row, (n,) int64."""
        found: IntArray = self.likely.argmax(axis=1).astype(np.int64)
        return found


def doubt_labels(
    rows: FloatArray, classes: IntArray, count: int, pictures: IntArray | None = None
) -> Doubts | None:
    """Judge the labels of rows (n, D): classes (n,), numbers below `count`, or -1 for none.

    Rows of one number in `pictures` (n,) are copies of one picture, and vouch for nothing of each
    other. None where there are too few to tell.
    """
    sizes = np.bincount(classes[classes >= 0], minlength=count)
    if (sizes > 1).sum() < LEAST_CLASSES or sizes[sizes > 1].sum() < LEAST_ROWS:
        return None
    judged = (classes >= 0) & (sizes[classes] > 1)
    rows = _fewer(rows)
    believed, wrong = judged, np.zeros(len(rows))
    for seed, folds in enumerate(_FOLDS):
        fold = _folds(classes, folds, seed, pictures)
        scores = _scores(rows, classes, count, believed, fold)
        sharpness, share = _mixture(scores[judged], classes[judged])
        wrong = np.zeros(len(rows))
        wrong[judged] = _wrong(_given(scores[judged], classes[judged], sharpness), share, count)
        believed = judged & (wrong < 0.5)
    scores *= sharpness
    return Doubts(softmax(scores), wrong, judged, _named(wrong), share)


def _fewer(rows: FloatArray) -> FloatArray:
    """Return rows in the directions in which they vary most, where they have more."""
    if rows.shape[1] <= _DIMS:
        return rows
    rows = rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    square = np.zeros((rows.shape[1],) * 2)
    for part in _blocks(np.arange(len(rows))):
        square += rows[part].astype(np.float64).T @ rows[part]
    axes = np.linalg.eigh(square)[1][:, ::-1][:, :_DIMS]
    return rows @ axes.astype(np.float32)


def _named(wrong: Floats) -> Bools:
    """Return the likeliest to be wrong, as many as keeps the expected share of wrong ones."""
    order = np.argsort(-wrong, kind="stable")
    expected = np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1)
    named = np.zeros(len(wrong), np.bool_)
    named[order[: int((expected >= NAMED_WRONG).sum())]] = True
    return named


def _folds(classes: IntArray, folds: int, seed: int, pictures: IntArray | None = None) -> IntArray:
    """Deal the rows of each class out to folds, (n,) int64; those of one picture to one."""
    generator = np.random.default_rng(seed)
    fold = np.empty(len(classes), np.int64)
    for number in np.unique(classes):
        mine = generator.permutation(np.flatnonzero(classes == number))
        fold[mine] = (np.arange(len(mine)) + generator.integers(folds)) % folds
    if pictures is not None:
        _, first, numbers = np.unique(pictures, return_index=True, return_inverse=True)
        fold = fold[first[numbers]]
    return fold


def _scores(
    rows: FloatArray, classes: IntArray, count: int, believed: Bools, fold: IntArray
) -> FloatArray:
    """Return the cosines (n, C) of rows and of the means of classes, fitted to other folds."""
    folds = int(fold.max()) + 1
    centre = rows[believed].mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = rows - centre
    # Of each fold alone: what others leave is a difference, and no row is read again.
    parts = [_moments(rows, classes, count, believed & (fold == each)) for each in range(folds)]
    squares, sums, sizes = (sum(part[n] for part in parts) for n in range(3))
    scores = np.empty((len(rows), count), np.float32)
    for each, (mine, own, few) in enumerate(parts):
        left = sizes - few
        centres = (sums - own) / np.maximum(left, 1)[:, None]
        within = squares - mine - (centres * left[:, None]).T @ centres
        within /= max(int(left.sum() - (left > 0).sum()), 1)
        space = _whitener(within)
        kept = believed & (fold != each)
        means = class_means(_turned(rows[kept], space), classes[kept], count)
        asking = np.flatnonzero(fold == each)
        for part in _blocks(asking):
            scores[part] = _turned(rows[part], space) @ means.T
        # Nothing looks like a class that has no row in the other folds.
        scores[np.ix_(asking, np.flatnonzero(left == 0))] = -1
    return scores


def _moments(
    rows: FloatArray, classes: IntArray, count: int, chosen: Bools
) -> tuple[Floats, Floats, IntArray]:
    """Return the sum of outer products (D, D) of some rows, their sums by class, and how many."""
    squares = np.zeros((rows.shape[1],) * 2)
    places = np.flatnonzero(chosen)
    for part in _blocks(places):
        block = rows[part].astype(np.float64)
        squares += block.T @ block
    sums, sizes = sums_by(classes[places], rows[places].astype(np.float64), count)
    return squares, sums.astype(np.float64), sizes


def _whitener(within: Floats) -> FloatArray:
    """Return the map (D, D) under which a shrunk covariance is the identity."""
    level = float(np.trace(within)) / len(within) or 1.0  # rows that never vary: as they are
    root = np.linalg.cholesky(within + _SHRINK * level * np.eye(len(within)))
    return np.linalg.inv(root).T.astype(np.float32)


def _turned(rows: FloatArray, space: FloatArray) -> FloatArray:
    return unit_rows(rows @ space)


def _blocks(places: IntArray) -> Iterator[IntArray]:
    return (places[start : start + _BLOCK] for start in range(0, len(places), _BLOCK))


def _mixture(scores: FloatArray, classes: IntArray) -> tuple[float, float]:
    """Return the sharpness and the share of wrong labels under which labels are most likely."""
    count = scores.shape[1]
    part = slice(None, None, max(1, scores.size // _SCORES))
    scores, classes = scores[part], classes[part]
    best = (-np.inf, 1.0, 0.0)
    for sharpness in _SHARPNESS.tolist():
        given = _given(scores, classes, sharpness)
        share = 0.05
        for _ in range(_STEPS):
            share = float(_wrong(given, share, count).mean())
        chance = (1 - share) * given + share * (1 - given) / (count - 1)
        best = max(best, (float(np.log(chance + 1e-300).sum()), sharpness, share))
    return best[1], best[2]


def _given(scores: FloatArray, classes: IntArray, sharpness: float) -> Floats:
    """Return how likely the given classes are by their scores alone, (n,) float64."""
    given = np.empty(len(scores))
    for part in _blocks(np.arange(len(scores))):
        block = sharpness * scores[part].astype(np.float64)
        powers = np.exp(block - block.max(axis=1, keepdims=True))
        given[part] = powers[np.arange(len(part)), classes[part]] / powers.sum(axis=1)
    return given


def _wrong(given: Floats, share: float, count: int) -> Floats:
    """Return how likely labels are wrong, if wrong ones are as good as any other: (n,) float64."""
    other = share * (1 - given) / (count - 1)
    found: Floats = other / ((1 - share) * given + other + 1e-300)
    return found
