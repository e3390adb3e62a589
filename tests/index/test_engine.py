"""The exact engine: whatever is built, masked and asked, the answer is the full scan's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.codes import CodeArray, Codebooks, FloatArray, QueryNorm
from phpq.errors import ShapeError
from phpq.index import CodeIndex
from reference import random_codebooks, scan_codes, search_loop


def random_tables(
    rng: np.random.Generator, books: int, size: int, *, queries: int = 3, ties: bool = False
) -> FloatArray:
    tables = rng.standard_normal((queries, books, size)).astype(np.float32)
    return np.round(tables).astype(np.float32) if ties else tables


def assert_same(
    index: CodeIndex,
    codes: CodeArray,
    tables: FloatArray,
    top_k: int,
    allowed: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
    threads: int = 1,
) -> None:
    found = index.search_tables(tables, top_k, allowed=allowed, threads=threads)
    rows = None if allowed is None else np.flatnonzero(allowed)
    ids, scores = scan_codes(tables, codes, top_k, rows)
    np.testing.assert_array_equal(found.scores, scores)
    np.testing.assert_array_equal(found.ids, ids)
    assert found.ids.dtype == np.int64
    assert found.scores.dtype == np.float32


@given(data=st.data(), seed=st.integers(0, 2**32 - 1), books=st.integers(1, 9))
@settings(max_examples=150)
def test_any_index_equals_the_full_scan(data: st.DataObject, seed: int, books: int) -> None:
    size = data.draw(st.sampled_from([2, 4, 16]), "codebook size")
    used = data.draw(st.integers(1, size), "codewords in use")
    count = data.draw(st.integers(0, 200), "rows")
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=size)
    codes = rng.integers(0, used, (count, books)).astype(np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        # Small limits, so that a few rows go through several parts and the cells.
        most = data.draw(st.sampled_from([7, 50, 1 << 31]), "rows of a part")
        patch.setattr("phpq.index.engine._PART_ROWS", most)
        patch.setattr("phpq.index.engine.CELL_GROUPS", data.draw(st.sampled_from([0, 8]), "cells"))
        index = CodeIndex(codebooks, codes).build()
    scanned = CodeIndex(codebooks, codes)  # so few rows that nothing is built for them
    assert len(index) == len(scanned) == count
    np.testing.assert_array_equal(index.codes(), codes)
    np.testing.assert_array_equal(scanned.codes(), codes)
    for _ in range(data.draw(st.integers(1, 4), "searches")):
        queries = data.draw(st.sampled_from([1, 3, 6]), "queries")
        ties = data.draw(st.booleans(), "ties")
        tables = random_tables(rng, books, size, queries=queries, ties=ties)
        allowed = rng.random(count) < rng.random() ** 4 if rng.random() < 0.5 else None
        top_k = data.draw(st.integers(1, 30), "top_k")
        for each in (index, scanned):
            assert_same(each, codes, tables, top_k, allowed)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("used", [256, 5])
@pytest.mark.parametrize("books", [1, 2, 3, 4, 5, 6, 7, 8, 10])
def test_large_galleries_equal_the_full_scan(books: int, used: int, ties: bool) -> None:
    # Large enough that some queries walk the cells to the end and others fall back to the scan.
    rng = np.random.default_rng(books * used)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=256)
    codes = rng.integers(0, used, (20_000, books)).astype(np.uint8)
    index = CodeIndex(codebooks, codes).build()
    tables = random_tables(rng, books, 256, ties=ties)
    assert_same(index, codes, tables, 100)
    tables[:, :, 0] += 5  # one codeword is much better, as for learned codes
    assert_same(index, codes, tables, 7)
    most = rng.random(20_000) < 0.7
    assert_same(index, codes, tables, 20, most)
    few = rng.random(20_000) < 0.01
    assert_same(index, codes, tables, 20, few)
    assert_same(index, codes, np.concatenate([tables, tables]), 20, few)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 2e37])
def test_tables_of_any_size_are_compared_safely(scale: float) -> None:
    rng = np.random.default_rng(7)
    codebooks = random_codebooks(rng, num_codebooks=6, codebook_size=256)
    codes = rng.integers(0, 256, (20_000, 6)).astype(np.uint8)
    index = CodeIndex(codebooks, codes).build()
    assert_same(index, codes, random_tables(rng, 6, 256) * np.float32(scale), 50)


@pytest.mark.parametrize("books", [3, 4, 7, 8])
def test_rounding_never_hides_a_row(books: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Scores that differ in the last bits only, where float32 sums go up or down by more than the
    # entries differ: a bound without a margin loses rows here.
    monkeypatch.setattr("phpq.index.engine.CELL_GROUPS", 0)
    rng = np.random.default_rng(books)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=16)
    codes = rng.integers(0, 16, (6000, books)).astype(np.uint8)
    index = CodeIndex(codebooks, codes).build()
    tables = 1 + rng.integers(-9, 9, (40, books, 16)) * 2.0**-22
    for top_k in (1, 5, 60):
        for each in (index, CodeIndex(codebooks, codes)):
            assert_same(each, codes, tables.astype(np.float32), top_k)


def test_all_codes_equal_and_all_scores_equal() -> None:
    rng = np.random.default_rng(9)
    codebooks = random_codebooks(rng, num_codebooks=4, codebook_size=256)
    codes = np.full((30_000, 4), 7, dtype=np.uint8)
    index = CodeIndex(codebooks, codes).build()
    assert_same(index, codes, random_tables(rng, 4, 256), 100)
    codes = rng.integers(0, 256, (20_000, 4)).astype(np.uint8)
    index = CodeIndex(codebooks, codes).build()
    assert_same(index, codes, np.zeros((2, 4, 256), dtype=np.float32), 100)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpq.index.engine._THREADS_SECONDS", 0)
    rng = np.random.default_rng(10)
    codebooks = random_codebooks(rng, num_codebooks=4, codebook_size=16)
    codes = rng.integers(0, 16, (20_000, 4)).astype(np.uint8)
    index = CodeIndex(codebooks, codes).build()
    tables = random_tables(rng, 4, 16, queries=23)
    for threads in (0, 1, 2, 5, 64):
        assert_same(index, codes, tables, 11, threads=threads)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    used=st.sampled_from([1, 2, 8]),
    top_k=st.integers(1, 20),
)
@settings(max_examples=60)
def test_the_scan_equals_a_loop_over_rows(seed: int, rows: int, used: int, top_k: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, used, (rows, 2)).astype(np.uint8)
    tables = random_tables(rng, 2, 8, ties=bool(seed % 2))
    ids, scores = scan_codes(tables, codes, top_k)
    for q in range(3):
        twin = search_loop(tables[q], codes, top_k)
        assert ids[q].tolist() == [row for row, _ in twin] + [-1] * (top_k - len(twin))
        assert scores[q, : len(twin)].tolist() == [score for _, score in twin]


def test_ties_between_different_codes_follow_insertion() -> None:
    # Two codewords are equal, so codes 0 and 1 always score the same; their rows interleave.
    rng = np.random.default_rng(0)
    words = random_codebooks(rng, num_codebooks=1, codebook_size=4, sub_dim=4).codewords.copy()
    words[0, 1] = words[0, 0]
    codes = np.array([[1], [0], [3], [0], [1], [1], [0]], dtype=np.uint8)
    index = CodeIndex(Codebooks(words), codes)
    for top_k in range(1, 7):
        found = index.search(words[0, :1], top_k)
        assert found.ids[0].tolist() == [0, 1, 3, 4, 5, 6][:top_k]


def test_raw_queries_weigh_sub_vectors_by_their_length() -> None:
    codebooks = random_codebooks(np.random.default_rng(2), num_codebooks=2)
    codes = np.array([[0, 1], [1, 0]], dtype=np.uint8)
    query = codebooks.decode(np.array([[0, 0]], dtype=np.uint8))
    query[:, :4] *= 100
    found = CodeIndex(codebooks, codes).search(query, 1, query_norm="raw")
    assert found.ids.tolist() == [[0]]
    assert found.scores[0, 0] > 50


def test_float_queries_are_scored_by_their_lookup_tables() -> None:
    rng = np.random.default_rng(11)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=16)
    codes = rng.integers(0, 16, (3000, 3)).astype(np.uint8)
    queries = rng.standard_normal((5, 12)).astype(np.float32)
    index = CodeIndex(codebooks, codes).build()
    assert index.codebooks is codebooks
    norms: tuple[QueryNorm, ...] = ("unit", "raw")
    for norm in norms:
        found = index.search(queries, 9, query_norm=norm)
        ids, scores = scan_codes(codebooks.lookup_tables(queries, norm=norm), codes, 9)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_array_equal(found.scores, scores)


def test_empty_indexes_and_no_queries() -> None:
    codebooks = random_codebooks(np.random.default_rng(12))
    index = CodeIndex(codebooks, np.zeros((0, 3), dtype=np.uint8))
    found = index.search(np.ones((2, 12), dtype=np.float32), 4)
    assert (len(index), index.memory_bytes(), index.codes().shape) == (0, 0, (0, 3))
    assert found.ids.tolist() == [[-1] * 4] * 2
    assert (found.scores == -np.inf).all()
    index = CodeIndex(codebooks, np.zeros((1, 3), dtype=np.uint8))
    query = np.ones((1, 12), dtype=np.float32)
    assert index.search(query, 3).ids.tolist() == [[0, -1, -1]]
    assert index.search(query[:0]).ids.shape == (0, 10)
    none = np.zeros(1, dtype=np.bool_)
    assert index.search(query, 1, allowed=none).ids.tolist() == [[-1]]


@pytest.mark.parametrize("used", [256, 3])
@pytest.mark.parametrize("books", [2, 3, 4, 6, 8])
def test_memory_stays_within_its_bound(books: int, used: int) -> None:
    rows = 200_000
    rng = np.random.default_rng(books)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=256)
    index = CodeIndex(codebooks, rng.integers(0, used, (rows, books)).astype(np.uint8)).build()
    fixed = (books + 1) // 2 * 4 * (256**2 + 1)  # the tables of cells do not grow with the rows
    assert index.memory_bytes() - fixed <= rows * (1.5 * books + 7)
    assert index.memory_bytes() >= 4 * rows


def test_bad_arguments_are_refused() -> None:
    codebooks = random_codebooks(np.random.default_rng(14))
    index = CodeIndex(codebooks, np.zeros((4, 3), dtype=np.uint8))
    query = np.ones((1, 12), dtype=np.float32)
    with pytest.raises(ShapeError, match=r"codes has shape \(1, 2\); expected \(N, 3\)"):
        CodeIndex(codebooks, np.zeros((1, 2), dtype=np.uint8))
    with pytest.raises(ShapeError, match=r"queries has shape \(1, 5\)"):
        index.search(np.ones((1, 5), dtype=np.float32))
    with pytest.raises(ShapeError, match="top_k=0 is not allowed; expected a whole number"):
        index.search(query, 0)
    with pytest.raises(ShapeError, match="threads=-1 is not allowed"):
        index.search(query, 1, threads=-1)
    with pytest.raises(ShapeError, match=r"shape \(3,\).*expected a bool array of shape \(4,\)"):
        index.search(query, 1, allowed=np.ones(3, dtype=np.bool_))
    with pytest.raises(ShapeError, match=r"tables is an array of shape \(1, 3, 4\)"):
        index.search_tables(np.zeros((1, 3, 4), dtype=np.float32), 1)
    with pytest.raises(ShapeError, match="not finite"):
        index.search_tables(np.full((1, 3, 8), np.nan, dtype=np.float32), 1)


def test_sums_that_overflow_are_found_alike_with_and_without_a_build() -> None:
    rng = np.random.default_rng(15)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=4)
    codes = rng.integers(0, 4, (50, 3)).astype(np.uint8)
    tables = np.full((1, 3, 4), 3e38, np.float32)
    tables[0, 2] = -np.inf  # beside it a sum is no number
    tables[0, 1, :2] = -1
    tables[0, 2, :2] = [0.5, -3e38]
    plain, built = (
        each._search(tables, 40, None, 1)
        for each in (CodeIndex(codebooks, codes), CodeIndex(codebooks, codes).build())
    )
    np.testing.assert_array_equal(plain.ids, built.ids)
    np.testing.assert_array_equal(plain.scores, built.scores)


@pytest.mark.parametrize("few", [0, 100])
def test_rows_are_sorted_once_enough_was_scanned(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpq.index.engine.FEW_ROWS", few)
    monkeypatch.setattr("phpq.index.engine._SCAN_SCORES", 250)
    rng = np.random.default_rng(16)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=16)
    codes = rng.integers(0, 16, (100, 3)).astype(np.uint8)
    index = CodeIndex(codebooks, codes)
    tables = random_tables(rng, 3, 16, queries=3)
    sizes = []
    for _ in range(3):
        assert_same(index, codes, tables[:1], 5)
        sizes.append(index.memory_bytes())
    # Few rows are scanned for ever, unless many queries come at once.
    assert [size == codes.nbytes for size in sizes] == [True, True, few == 100]
    assert_same(index, codes, tables, 5)
    assert index.memory_bytes() > codes.nbytes


def test_few_rows_are_searched_without_the_compiler() -> None:
    code = """
import sys
sys.modules["numba"] = None  # to import it is an error
import numpy as np
from phpq.codes import Codebooks
from phpq.index import CodeIndex
words = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))
index = CodeIndex(Codebooks(words), np.zeros((6000, 2), np.uint8))
assert index.search(np.ones((2, 8), np.float32), 3).ids.tolist() == [[0, 1, 2]] * 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)
