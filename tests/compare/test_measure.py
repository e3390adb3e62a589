"""Recall of float search against plain loops; speed and weight at sizes that fit and do not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_comparisons import made_up_images, made_up_space
from phpq.compare import measure
from phpq.compare.measure import (
    Budget,
    _openblas,
    blas_threads,
    build_and_measure,
    expected_recall,
    time_rows,
)
from phpq.compare.rivals import Rival, list_rivals

IMAGES = made_up_images()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_TIMED_SECONDS", 1e-4)


@pytest.fixture(scope="module")
def rivals() -> list[Rival]:
    """Return rows of a comparison that needs no learning."""
    return list_rivals(made_up_space(IMAGES), None, [], IMAGES)[0]


def named(rivals: list[Rival], start: str) -> Rival:
    return next(rival for rival in rivals if rival.name.startswith(start))


def test_recall_is_the_mean_over_all_orders_of_ties() -> None:
    scores = np.array([[3, 2, 2, 2, 1, 0], [1, 1, 1, 1, 1, 1], [6, 5, 4, 3, 2, 1]], np.float32)
    wanted = np.array([[0, 2], [4, 5], [4, 0]])
    expected = []
    for row, ids in zip(scores, wanted, strict=True):
        shares = []
        for order in itertools.permutations(range(6)):
            ranked = sorted(order, key=lambda item: -row[item])  # stable: ties as they came
            shares.append(len(set(ranked[:2]) & set(ids.tolist())) / 2)
        expected.append(sum(shares) / len(shares))
    np.testing.assert_allclose(expected_recall(scores, wanted), expected, rtol=1e-6)


def test_float_search_finds_what_float_search_finds(rivals: list[Rival], tmp_path: Path) -> None:
    row = build_and_measure(named(rivals, "float search"), IMAGES, tmp_path / "floats").row
    assert row.float_recall == 100
    assert row.r1 is not None
    assert row.unseen_r1 is not None
    space = made_up_space(IMAGES)
    right = []
    for query in IMAGES.seen_queries:
        best = int(np.argmax([np.dot(space.queries[query], other) for other in space.gallery]))
        right.append(IMAGES.gallery[best] == IMAGES.queries[query])
    assert row.r1 == pytest.approx(100 * np.mean(right))


def test_without_new_classes_there_is_no_unseen_column(rivals: list[Rival], tmp_path: Path) -> None:
    images = replace(IMAGES, unseen=np.zeros(6, bool))
    row = build_and_measure(named(rivals, "class means"), images, tmp_path / "floats").row
    assert row.unseen_r1 is None
    assert row.map is not None
    nothing = replace(IMAGES, unseen=np.ones(6, bool))
    row = build_and_measure(named(rivals, "class means"), nothing, tmp_path / "floats").row
    assert row.map is None
    assert row.unseen_r1 is not None


def test_a_size_that_does_not_fit_is_timed_smaller_and_weighed_in_full(
    rivals: list[Rival], tmp_path: Path
) -> None:
    built = [
        build_and_measure(named(rivals, name), IMAGES, tmp_path / "floats")
        for name in ("float search", "class means")
    ]
    budget = Budget(memory=100_000, seconds=1000.0, left=2)
    floats, classes = time_rows(built, IMAGES, 5000, tmp_path, budget)
    assert (floats.rows, floats.asked) == (500, 5000)
    assert floats.memory == pytest.approx(128, rel=0.01)
    assert classes.rows == 5000
    assert classes.one_thread > 0
    assert classes.all_threads > 0
    # Nothing is left for anyone: the real gallery is timed.
    tight = time_rows(built, IMAGES, 5000, tmp_path, Budget(memory=0, seconds=0.0, left=2))
    assert [speed.rows for speed in tight] == [len(IMAGES.gallery)] * 2


def test_scans_of_a_large_size_repeat_some_rows(
    rivals: list[Rival], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "ENCODED", 200)
    built = [
        build_and_measure(named(rivals, name), IMAGES, tmp_path / "floats")
        for name in ("PQ 4 bytes", "class means", "signs", "IVFPQ")
    ]
    budget = Budget(memory=1e9, seconds=1000.0, left=4)
    speeds = time_rows(built, IMAGES, 5000, tmp_path, budget)
    assert [speed.rows for speed in speeds] == [5000] * 4
    assert [speed.encoded for speed in speeds] == [200, 200, 200, 5000]


def test_what_does_not_fit_together_takes_turns_apart_and_is_not_timed_again(
    rivals: list[Rival], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = [
        build_and_measure(named(rivals, name), IMAGES, tmp_path / "floats")
        for name in ("float search", "HNSW", "class means")
    ]
    turns: list[int] = []
    together = measure._time_in_turns

    def counted(waiting: list[Any]) -> None:
        turns.append(len(waiting))
        together(waiting)

    monkeypatch.setattr(measure, "_time_in_turns", counted)
    timed: measure.Timed = {}
    room = 1.02 * 128 * 5000
    first = time_rows(built, IMAGES, 500, tmp_path, Budget(memory=room, seconds=1e3, left=3), timed)
    assert turns == [3]
    later = time_rows(
        built, IMAGES, 5000, tmp_path, Budget(memory=room, seconds=1e3, left=3), timed
    )
    assert turns[1:] == [1, 1]  # the graph does not fit, and the floats are timed alone
    assert [speed.rows for speed in later] == [5000, 500, 5000]
    assert later[1].one_thread == first[1].one_thread
    assert later[1].asked == 5000


def test_numpy_multiplies_in_as_many_threads_as_asked() -> None:
    library = _openblas()
    if library is None:
        pytest.skip("numpy has another library here")
    before = library.scipy_openblas_get_num_threads64_()
    with blas_threads(1) as known:
        assert known
        assert library.scipy_openblas_get_num_threads64_() == 1
    assert library.scipy_openblas_get_num_threads64_() == before
