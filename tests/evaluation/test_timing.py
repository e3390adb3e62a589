"""Timing: both searches find what they should, and the figures are consistent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from phpq.codes import FloatArray
from phpq.errors import ShapeError
from phpq.evaluation.timing import search_float, time_search
from phpq.index import CodeIndex, SearchResult
from reference import random_codebooks


def vectors(seed: int, rows: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, 12)).astype(np.float32)


def test_float_search_equals_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, gallery = vectors(0, 9), vectors(1, 30)
    monkeypatch.setattr("phpq.evaluation.timing._BLOCK_SCORES", 100)
    found = search_float(queries, gallery, top_k=7)
    scores = queries @ gallery.T
    np.testing.assert_array_equal(found.ids, np.argsort(-scores, axis=1)[:, :7])
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :7], rtol=1e-5)
    assert search_float(queries, gallery[:3], top_k=7).ids.shape == (9, 3)


def test_queries_are_repeated_to_the_number_asked_for() -> None:
    codebooks = random_codebooks(np.random.default_rng(2))
    timing = time_search(
        vectors(0, 3), vectors(1, 20), codebooks=codebooks, num_queries=50, repeats=3
    )
    assert (timing.queries, timing.gallery, timing.repeats, timing.top_k) == (50, 20, 3, 10)
    assert timing.code_seconds > 0
    assert timing.ratio == timing.float_seconds / timing.code_seconds
    assert timing.distinct_codes <= 20
    assert timing.threads >= 1
    assert json.loads(json.dumps(timing.to_dict()))["ratio"] == timing.ratio


def test_the_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Codes take 1, 2, 3 s and float search 10, 20, 30 s; the first of each warms up.
    ticks = iter([1.0, 10.0, 2.0, 20.0, 3.0, 30.0])
    monkeypatch.setattr("phpq.evaluation.timing.timeit", lambda _search, number: next(ticks))
    codebooks = random_codebooks(np.random.default_rng(2))
    timing = time_search(vectors(0, 3), vectors(1, 5), codebooks=codebooks, repeats=2)
    assert (timing.code_seconds, timing.float_seconds) == (2.5, 25.0)


def test_code_search_has_the_threads_that_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    search, seen = CodeIndex.search, set()

    def recorded(index: CodeIndex, *args: Any, **options: Any) -> SearchResult:
        seen.add(options.get("threads"))
        return search(index, *args, **options)

    monkeypatch.setattr(CodeIndex, "search", recorded)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    codebooks = random_codebooks(np.random.default_rng(2))
    timing = time_search(vectors(0, 3), vectors(1, 5), codebooks=codebooks, repeats=1)
    assert seen == {timing.threads} == {3}


def test_nothing_to_time_is_refused() -> None:
    codebooks = random_codebooks(np.random.default_rng(2))
    with pytest.raises(ShapeError, match="over 0 rows"):
        time_search(vectors(0, 3), vectors(1, 0), codebooks=codebooks)
