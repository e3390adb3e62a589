"""The filter leaves out what a plain sum of rounded losses does, and never a row that counts."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from phpq.codes import CodeArray, FloatArray
from phpq.index import CodeIndex, _filter
from phpq.index._filter import HAS_FILTER, filters, new_sieve, set_reach, sift
from phpq.index.engine import scan
from reference import random_codebooks

needs_filter = pytest.mark.skipif(not HAS_FILTER, reason="this processor has no AVX-512 VBMI")
LENGTHS = (4, 6, 8, 16)


def byte_sums(losses: CodeArray, codes: CodeArray) -> CodeArray:
    """Add up the bytes of each code, ending at 255."""
    sums = np.zeros(len(codes), np.int64)
    for m, column in enumerate(codes.T):
        sums = np.minimum(sums + losses[m, column], 255)
    return sums.astype(np.uint8)


@needs_filter
@pytest.mark.parametrize("books", LENGTHS)
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1000, 4001])
def test_the_rows_left_are_those_of_plain_sums(books: int, rows: int) -> None:
    rng = np.random.default_rng(books * rows)
    sieve = new_sieve(books)
    held = rng.integers(0, 256, (rows + 3, books)).astype(np.uint8)
    codes = held[3:]  # not where a register's worth of bytes starts
    for most, limit in ((1, 0), (60, 254), (255, 254), (255, 100), (256, 254)):
        sieve.losses[:] = rng.integers(0, most, sieve.losses.shape)
        sieve.losses[rng.random(sieve.losses.shape) < 0.1] = 0
        if most == 256:  # one byte in the way
            sieve.losses[:] = 0
            sieve.losses[-1, 130:] = 255
        sums = byte_sums(sieve.losses, codes)
        for first, last in ((0, rows), (rows // 3, rows - rows // 4), (5, 5), (rows - 1, rows)):
            span = np.arange(first, last)
            whole = rows // 64 * 64  # all rows of a last block that is not whole are left
            expected = span[(sums[first:last] <= limit) | (span >= whole)]
            count = sift(sieve, codes, (first, last), limit)
            if count < 0:
                assert len(expected) > _filter._MOST
            else:
                np.testing.assert_array_equal(sieve.left[:count], expected)


@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1.0, 1e30, 1e36])
def test_a_code_within_reach_is_never_above_the_limit(scale: float) -> None:
    rng = np.random.default_rng(3)
    losses = (rng.random((8, 256)) * scale).astype(np.float32)
    codes = rng.integers(0, 256, (5000, 8)).astype(np.uint8)
    true = losses[np.arange(8), codes].astype(np.float64).sum(axis=1)
    sieve = new_sieve(8)
    made = 0
    for reach in (6 * scale, 5.5 * scale, 3 * scale, 2.8 * scale, float(true.min())):
        before = float(sieve.reach[0])
        limit = set_reach(sieve, losses, reach)
        made += sieve.reach[0] != before
        assert 200 <= limit <= 254
        sums = byte_sums(sieve.losses, codes)
        assert (sums[true <= reach] <= limit).all()
        # Rounding hides at most one unit in each codebook.
        assert (sums[true > reach + 9 * sieve.reach[0] / 254] > limit).all()
    assert made == 3


def test_losses_of_nothing_leave_everything() -> None:
    sieve = new_sieve(4)
    assert set_reach(sieve, np.zeros((4, 256), np.float32), 0.0) == 254
    assert not sieve.losses.any()


def search_cases(books: int) -> list[tuple[str, CodeArray, FloatArray]]:
    """Codes and tables that are hard for a filter."""
    rng = np.random.default_rng(books)
    codes = rng.integers(0, 256, (40_013, books)).astype(np.uint8)
    normal = rng.standard_normal((2, books, 256)).astype(np.float32)
    steps = np.round(normal)  # many rows at the root's score
    far = normal.copy()
    far[:, :, 7] = 1000  # the best conceivable score is out of reach
    near = (1 + rng.integers(-9, 9, normal.shape) * 2.0**-22).astype(np.float32)
    most = np.float32(3e38)
    huge = np.where(normal > 1.5, most, np.where(normal < -1.5, -most, normal))  # sums of inf, NaN
    few = codes.copy()
    few[few == 7] = 8
    return [
        ("normal", codes, normal),
        ("ties", codes, steps),
        ("out of reach", few, far),
        ("rounding", codes, near),
        ("overflow", codes, huge),
        ("tiny", codes, normal * np.float32(1e-43)),
        ("repeated", np.tile(codes[:10_000], (5, 1)), steps),
    ]


@pytest.mark.parametrize("books", LENGTHS)
def test_searches_with_the_filter_equal_the_full_scan(books: int) -> None:
    rng = np.random.default_rng(books)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=256)
    for name, codes, tables in search_cases(books):
        index = CodeIndex(codebooks, codes).build()
        for top_k, share in ((1, None), (30, None), (30, 0.5), (30, 0.012)):
            allowed = None if share is None else rng.random(len(codes)) < share
            # Four queries: where few rows are allowed, those are copied to a part without cells.
            asked = np.concatenate([tables, tables[::-1]])
            found = index.search_tables(asked, top_k, allowed=allowed, threads=1)
            ids, scores = scan(asked, codes, top_k, allowed)
            np.testing.assert_array_equal(found.ids, ids, name)
            np.testing.assert_array_equal(found.scores, scores, name)


PLAIN = """
from phpq.index._filter import HAS_FILTER, filters
assert not HAS_FILTER
assert not filters(8)
"""
SEARCH = """
import numpy as np
from phpq.codes import Codebooks
from phpq.index import CodeIndex
rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (20_000, 8)).astype(np.uint8)
tables = rng.standard_normal((2, 8, 256)).astype(np.float32)
index = CodeIndex(Codebooks(np.tile(np.eye(256, dtype=np.float32), (8, 1, 1))), codes)
plain, built = index.search_tables(tables, 50), index.build().search_tables(tables, 50)
assert (plain.ids == built.ids).all()
assert (plain.scores == built.scores).all()
"""


# All is compiled for another processor in the second, which takes a while.
@pytest.mark.parametrize("code", [PLAIN, pytest.param(PLAIN + SEARCH, marks=pytest.mark.slow)])
def test_a_processor_without_the_instructions_gets_the_same_answers(code: str) -> None:
    environment = os.environ | {"NUMBA_CPU_NAME": "generic"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@needs_filter
def test_lengths_without_a_filter_are_known() -> None:
    assert [m for m in range(1, 33) if filters(m)] == list(LENGTHS)
    assert _filter.BLOCK == 64
