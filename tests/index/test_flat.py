"""Exact search over codes: the same answer as a plain loop, ties in order of insertion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.codes import score_codes
from phpq.errors import ShapeError
from phpq.index import FlatIndex, Index
from reference import random_codebooks, search_loop


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    used=st.sampled_from([1, 2, 8]),
    top_k=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_search_equals_its_twin(seed: int, rows: int, used: int, top_k: int) -> None:
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=2, codebook_size=8, sub_dim=3)
    codes = rng.integers(0, used, (rows, 2)).astype(np.uint8)
    queries = rng.standard_normal((3, 6)).astype(np.float32)
    found = FlatIndex(codebooks, codes).search(queries, top_k)
    tables = codebooks.lookup_tables(queries)
    assert found.ids.shape == found.scores.shape == (3, top_k)
    for q in range(3):
        twin = search_loop(tables[q], codes, top_k)
        assert found.ids[q, : len(twin)].tolist() == [row for row, _ in twin]
        assert found.scores[q, : len(twin)].tolist() == [score for _, score in twin]
        assert (found.ids[q, len(twin) :] == -1).all()
        assert (found.scores[q, len(twin) :] == -np.inf).all()


def test_ties_between_different_codes_follow_insertion() -> None:
    # Two codewords are equal, so codes 0 and 1 always score the same; their rows interleave.
    rng = np.random.default_rng(0)
    words = random_codebooks(rng, num_codebooks=1, codebook_size=4, sub_dim=4).codewords.copy()
    words[0, 1] = words[0, 0]
    codebooks = type(random_codebooks(rng))(words)
    codes = np.array([[1], [0], [3], [0], [1], [1], [0]], dtype=np.uint8)
    index = FlatIndex(codebooks, codes)
    for top_k in range(1, 7):
        found = index.search(words[0, :1], top_k)
        assert found.ids[0].tolist() == [0, 1, 3, 4, 5, 6][:top_k]


def test_blocks_of_queries_change_nothing_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    codebooks = random_codebooks(rng)
    codes = rng.integers(0, 8, (100, 3)).astype(np.uint8)
    index = FlatIndex(codebooks, codes)
    queries = rng.standard_normal((50, 12)).astype(np.float32)
    whole = index.search(queries, 5)
    monkeypatch.setattr("phpq.index.flat._BLOCK_SCORES", 300)
    parts = index.search(queries, 5)
    np.testing.assert_allclose(whole.scores, parts.scores, atol=1e-6)
    rows = np.arange(50)[:, None]
    exact = score_codes(codebooks.lookup_tables(queries), codes)
    np.testing.assert_allclose(exact[rows, parts.ids], whole.scores, atol=1e-6)


def test_raw_queries_weigh_sub_vectors_by_their_length() -> None:
    rng = np.random.default_rng(2)
    codebooks = random_codebooks(rng, num_codebooks=2)
    codes = np.array([[0, 1], [1, 0]], dtype=np.uint8)
    query = codebooks.decode(np.array([[0, 0]], dtype=np.uint8))
    query[:, :4] *= 100
    found = FlatIndex(codebooks, codes).search(query, 1, query_norm="raw")
    assert found.ids.tolist() == [[0]]
    assert found.scores[0, 0] > 50


def test_empty_galleries_and_empty_queries() -> None:
    rng = np.random.default_rng(3)
    codebooks = random_codebooks(rng)
    index: Index = FlatIndex(codebooks, np.zeros((0, 3), dtype=np.uint8))
    found = index.search(np.ones((2, 12), dtype=np.float32), 4)
    assert len(index) == 0
    assert found.ids.tolist() == [[-1] * 4] * 2
    full = FlatIndex(codebooks, np.zeros((6, 3), dtype=np.uint8))
    assert (len(full), full.distinct_codes, full.codebooks) == (6, 1, codebooks)
    assert full.search(np.ones((0, 12), dtype=np.float32)).ids.shape == (0, 10)


def test_bad_arguments_are_refused() -> None:
    codebooks = random_codebooks(np.random.default_rng(4))
    with pytest.raises(ShapeError, match=r"codes has shape \(1, 2\); expected \(N, 3\)"):
        FlatIndex(codebooks, np.zeros((1, 2), dtype=np.uint8))
    index = FlatIndex(codebooks, np.zeros((1, 3), dtype=np.uint8))
    with pytest.raises(ShapeError, match="top_k=0 is not allowed; expected a whole number"):
        index.search(np.ones((1, 12), dtype=np.float32), 0)
    with pytest.raises(ShapeError, match=r"queries has shape \(1, 5\)"):
        index.search(np.ones((1, 5), dtype=np.float32))
