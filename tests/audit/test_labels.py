"""Label errors: planted ones are found, and a plain twin gives the same scores."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.audit.labels import (
    _SHRINK,
    FLAGGED_PRECISION,
    _error_probabilities,
    _fit_mixture,
    _flag,
    _folds,
    _label_probabilities,
    _reduce_dims,
    _scores,
    find_label_errors,
)
from phpq.codes import FloatArray, IntArray

CLASSES, EACH, DIM = 12, 25, 10


def kinds(seed: int, spread: float = 0.45) -> tuple[FloatArray, IntArray]:
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(CLASSES, DIM))
    classes = np.repeat(np.arange(CLASSES), EACH)
    rows = centres[classes] + spread * generator.normal(size=(len(classes), DIM))
    return rows.astype(np.float32), classes


def flipped(classes: IntArray, count: int, seed: int) -> tuple[IntArray, IntArray]:
    generator = np.random.default_rng(seed)
    places = generator.permutation(len(classes))[:count]
    given = classes.copy()
    given[places] = (given[places] + generator.integers(1, CLASSES, count)) % CLASSES
    return given, places


@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_labels_are_flagged_and_few_others(seed: int) -> None:
    rows, classes = kinds(seed)
    given, places = flipped(classes, 18, seed)
    errors = find_label_errors(rows, given, CLASSES)
    assert errors is not None
    named = np.flatnonzero(errors.flagged)
    right = np.isin(named, places).sum()
    assert right >= 14
    assert right >= 0.85 * len(named)
    assert 0.03 <= errors.share <= 0.1  # 6 % are wrong
    assert (errors.likely.argmax(axis=1)[places] == classes[places]).mean() > 0.85


def test_right_labels_are_left_alone() -> None:
    rows, classes = kinds(3)
    errors = find_label_errors(rows, classes, CLASSES)
    assert errors is not None
    assert errors.flagged.sum() <= 2
    assert errors.share < 0.01


def test_rows_without_label_and_labels_of_one_row_are_classified_but_not_judged() -> None:
    rows, classes = kinds(4)
    given = classes.copy()
    given[:3] = -1
    given[30] = CLASSES  # alone
    errors = find_label_errors(rows, given, CLASSES + 1)
    assert errors is not None
    assert not errors.wrong[[0, 1, 2, 30]].any()
    assert (errors.likely.argmax(axis=1)[:3] == classes[:3]).all()
    np.testing.assert_allclose(errors.likely.sum(axis=1), 1, rtol=1e-4)


def test_too_few_labels_tell_nothing() -> None:
    rows, classes = kinds(5)
    assert find_label_errors(rows, np.zeros(len(rows), np.int64), 1) is None
    assert find_label_errors(rows[:20], classes[:20] % 2, 2) is None
    assert find_label_errors(rows, np.full(len(rows), -1), 3) is None


def test_scores_are_those_of_plain_folds() -> None:
    rows, classes = kinds(6)
    trusted = np.random.default_rng(0).random(len(rows)) > 0.1
    fold = _folds(classes, 5, 0)
    found = _scores(rows, classes, CLASSES, trusted, fold)
    expected = np.empty(found.shape)
    for each in range(5):
        kept = trusted & (fold != each)
        within = np.zeros((DIM, DIM))
        for number in range(CLASSES):
            mine = rows[kept & (classes == number)].astype(np.float64)
            for row in mine - mine.mean(axis=0):
                within += np.outer(row, row)
        within /= kept.sum() - CLASSES
        within += _SHRINK * np.trace(within) / DIM * np.eye(DIM)
        space = np.linalg.inv(np.linalg.cholesky(within)).T
        turned = (rows - rows[trusted].mean(axis=0, dtype=np.float64)) @ space
        turned /= np.linalg.norm(turned, axis=1, keepdims=True)
        for number in range(CLASSES):
            mean = turned[kept & (classes == number)].sum(axis=0)
            expected[fold == each, number] = turned[fold == each] @ (mean / np.linalg.norm(mean))
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_the_mixture_is_the_likeliest_of_its_grid() -> None:
    rows, classes = kinds(7)
    given, _ = flipped(classes, 18, 7)
    scores = _scores(rows, given, CLASSES, np.ones(len(rows), np.bool_), _folds(given, 5, 0))
    sharpness, share = _fit_mixture(scores, given)

    def likelihood(factor: float, part: float) -> float:
        total = 0.0
        for row, number in zip(scores.astype(np.float64), given.tolist(), strict=True):
            chance = np.exp(factor * row[number]) / np.exp(factor * row).sum()
            total += np.log((1 - part) * chance + part * (1 - chance) / (CLASSES - 1))
        return total

    best = likelihood(sharpness, share)
    for factor in (0.6, 1.6):
        assert likelihood(sharpness * factor, share) < best
        assert likelihood(sharpness, share * factor) < best
    chance = _label_probabilities(scores, given, sharpness)
    wrong = _error_probabilities(chance, share, CLASSES)
    other = share * (1 - chance[0]) / (CLASSES - 1)
    assert wrong[0] == pytest.approx(other / ((1 - share) * chance[0] + other))


def test_as_many_are_flagged_as_keep_the_expected_share() -> None:
    wrong = np.array([0.2, 1.0, 0.99, 0.9, 0.0, 0.85])
    named = _flag(wrong)
    assert np.flatnonzero(named).tolist() == [1, 2, 3]
    assert wrong[named].mean() >= FLAGGED_PRECISION
    assert not _flag(np.zeros(3)).any()


def test_copies_are_no_evidence_for_each_other() -> None:
    rows, classes = kinds(8)
    given, places = flipped(classes, 12, 8)
    copied = np.concatenate([np.arange(len(rows)), np.repeat(places, 6)])
    alone = find_label_errors(rows[copied], given[copied], CLASSES)
    together = find_label_errors(rows[copied], given[copied], CLASSES, copied)
    assert alone is not None
    assert together is not None
    assert together.wrong[places].mean() > alone.wrong[places].mean() + 0.1
    assert (together.wrong[places] > 0.5).sum() >= 10


def test_many_directions_are_cut_to_those_that_vary_most() -> None:
    rows, _ = kinds(9)
    noise = 1e-3 * np.random.default_rng(0).normal(size=(len(rows), 600))
    wide = np.concatenate([rows, noise], axis=1).astype(np.float32)
    cut = _reduce_dims(wide)
    assert cut.shape[1] == 512
    assert _reduce_dims(rows) is rows
    apart = np.linalg.norm(cut[0] - cut[1])
    assert apart == pytest.approx(np.linalg.norm(rows[0] - rows[1]), rel=1e-2)
