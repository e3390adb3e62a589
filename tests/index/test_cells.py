"""What a query looks at: never less than what could enter the answer."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import CodeArray, FloatArray
from phpq.index import CodeIndex, _cells
from phpq.index._filter import new_sieve
from phpq.index._kernels import NO_ROW, Query
from phpq.index._part import build_part
from reference import random_codebooks, scan_codes

EVERY = np.empty(0, np.bool_)  # allows all rows


def additive(
    rng: np.random.Generator, rows: int, books: int, *, kinds: int
) -> tuple[CodeArray, FloatArray]:
    """Codes that go together, and tables whose first codebooks differ most."""
    codes = rng.integers(0, 256, (kinds, books)).astype(np.uint8)[rng.integers(0, kinds, rows)]
    new = rng.random((rows, books)) < np.linspace(0.1, 0.9, books)
    codes[new] = rng.integers(0, 256, int(new.sum()))
    tables = rng.standard_normal((4, books, 256)) / np.geomspace(1, 10, books)[:, None]
    return codes, tables.astype(np.float32)


def query_of(table: FloatArray, top_k: int) -> Query:
    return Query(
        table=table,
        losses=np.empty_like(table),
        scores=np.full(top_k, -np.inf, np.float32),
        rows=np.full(top_k, NO_ROW, np.int64),
        near=np.empty((2, table.shape[1]), np.int64),
        sieve=new_sieve(len(table)),
    )


@pytest.mark.parametrize(
    ("rows", "books", "repeated"),
    # Small; large enough for book 0 alone, and with repeated codes for a choice between ways.
    [(30_000, 2, 1), (30_000, 3, 6), (30_000, 8, 1), (300_000, 5, 2), (300_000, 8, 2)],
)
def test_codes_whose_first_codebooks_decide_equal_the_full_scan(
    rows: int, books: int, repeated: int
) -> None:
    rng = np.random.default_rng(books)
    codes, tables = additive(rng, rows, books, kinds=200)
    codes = np.tile(codes, (repeated, 1))
    index = CodeIndex(random_codebooks(rng, num_codebooks=books, codebook_size=256), codes).build()
    for top_k, share in ((1, None), (100, None), (100, 0.3), (40, 0.0005)):
        allowed = None if share is None else rng.random(len(codes)) < share
        found = index.search_tables(tables[:3], top_k, allowed=allowed, threads=1)
        kept = None if allowed is None else np.flatnonzero(allowed)
        ids, scores = scan_codes(tables[:3], codes, top_k, kept)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_array_equal(found.scores, scores)


def test_a_probe_raises_the_heap_to_a_score_that_enough_rows_reach() -> None:
    rng = np.random.default_rng(0)
    codes, tables = additive(rng, 20_000, 8, kinds=100)
    part = build_part(codes, 0, 256)
    for table in tables:
        query = query_of(table, 10)
        _cells._bounds(query)
        _cells._probe(part, EVERY, query)
        _, best = scan_codes(table[None], codes, 10)
        assert -np.inf < query.scores[0] <= best[0, -1]
        assert (query.rows == NO_ROW).all()  # any row that scores as much takes the place


def test_groups_in_cells_with_hope_are_counted_as_a_loop_counts_them() -> None:
    rng = np.random.default_rng(1)
    codes, tables = additive(rng, 20_000, 8, kinds=100)
    part = build_part(codes, 0, 256)
    for table in tables:
        query = query_of(table, 1)
        bounds = _cells._bounds(query)
        query.scores[0] = np.sort(table[np.arange(8), codes].sum(axis=1))[-50]
        most = table[0, codes[:, 0]] + table[1, codes[:, 1]] + table[2:].max(axis=1).sum()
        hopeful = int((most >= query.scores[0]).sum())
        assert 50 <= hopeful < 20_000
        # One more or less where the bound is the score itself.
        assert _cells._few_hopeful(part, query, bounds, hopeful + 2)
        assert not _cells._few_hopeful(part, query, bounds, hopeful - 1)
