"""Ranked tie groups: the code path, the dense path and a plain loop describe the same ranking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.codes import FloatArray, IntArray, score_codes
from phpq.errors import ShapeError
from phpq.evaluation._ranking import (
    TieGroups,
    label_groups,
    rank_codes,
    rank_embeddings,
    rank_rows,
)
from reference import random_codebooks, rank_scores

Rows = list[tuple[int, int, int, int, int]]


def flatten(blocks: Iterable[TieGroups]) -> tuple[Rows, list[int]]:
    """All groups with queries numbered through, and the relevant items of each query."""
    rows: Rows = []
    totals: list[int] = []
    for block in blocks:
        columns = (
            block.query + len(totals),
            block.size,
            block.relevant,
            block.size_before,
            block.relevant_before,
        )
        rows.extend(zip(*(column.tolist() for column in columns), strict=True))
        totals.extend(block.relevant_total.tolist())
    return rows, totals


def groups_loop(scores: FloatArray, queries: IntArray, gallery: IntArray) -> Rows:
    rows: Rows = []
    for q, label in enumerate(queries):
        before = hits_before = 0
        for value in sorted({float(s) for s in scores[q]}, reverse=True):
            members = [g for g in range(len(gallery)) if float(scores[q, g]) == value]
            hits = sum(int(gallery[g] == label) for g in members)
            if hits:
                rows.append((q, len(members), hits, before, hits_before))
            before += len(members)
            hits_before += hits
    return rows


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), classes=st.integers(1, 5))
@settings(max_examples=40)
def test_codes_scores_and_loops_agree(seed: int, rows: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=2, codebook_size=4, sub_dim=2)
    codes = rng.integers(0, 4, (rows, 2)).astype(np.uint8)
    gallery_labels = rng.integers(0, classes, rows) * 7 - 3  # labels need not start at 0
    query_labels = rng.integers(0, classes + 1, 6) * 7 - 3  # nor all occur in the gallery
    tables = codebooks.lookup_tables(rng.standard_normal((6, 4)).astype(np.float32))
    scores = score_codes(tables, codes)
    by_codes = flatten(
        rank_codes(tables, query_labels, gallery=label_groups(codes, gallery_labels))
    )
    by_scores = flatten([rank_scores(scores, query_labels, gallery_labels)])
    assert by_codes == by_scores
    assert by_codes[0] == groups_loop(scores, query_labels, gallery_labels)
    assert by_codes[1] == [int((gallery_labels == label).sum()) for label in query_labels]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    queries = rng.standard_normal((30, 6)).astype(np.float32)
    gallery = rng.standard_normal((20, 6)).astype(np.float32)
    labels, gallery_labels = rng.integers(0, 4, 30), rng.integers(0, 4, 20)

    def rank() -> tuple[Rows, list[int]]:
        return flatten(
            rank_embeddings(queries, labels, gallery=gallery, gallery_labels=gallery_labels)
        )

    whole = rank()
    assert flatten([rank_scores(queries @ gallery.T, labels, gallery_labels)]) == whole
    monkeypatch.setattr("phpq.evaluation._ranking._BLOCK_SCORES", 45)
    assert rank() == whole


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 12))
@settings(max_examples=40)
def test_rows_that_are_left_out_are_neither_found_nor_missed(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (5, rows)).astype(np.float32)  # many are tied
    labels, of_rows = rng.integers(0, 3, 5), rng.integers(0, 3, rows)
    absent = rng.random((5, rows)) < 0.4
    blocks = list(
        rank_rows(
            lambda part: scores[part], labels, gallery_labels=of_rows, left_out=lambda p: absent[p]
        )
    )
    expected: Rows = []
    for query in range(5):
        kept = ~absent[query]
        mine = groups_loop(scores[query : query + 1, kept], labels[query:][:1], of_rows[kept])
        expected += [(query, *row[1:]) for row in mine]
        order = np.argsort(-scores[query, kept], kind="stable")
        first = bool(len(order)) and of_rows[kept][order[0]] == labels[query]
        assert bool(blocks[0].first_relevant[query]) == first
    assert flatten(blocks)[0] == expected


def test_bad_input_is_refused() -> None:
    queries, gallery = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
    labels = np.zeros(3, dtype=np.int64)

    def rank(vectors: FloatArray, of: IntArray, gallery_labels: Any) -> None:
        next(rank_embeddings(vectors, of, gallery=gallery, gallery_labels=gallery_labels))

    with pytest.raises(ShapeError, match=r"query_labels has shape \(3,\) .* shape \(2,\)"):
        rank(queries, labels, labels)
    with pytest.raises(ShapeError, match=r"gallery_labels .* dtype 'float64'"):
        rank(queries, labels[:2], labels.astype(np.float64))
    with pytest.raises(ShapeError, match="The gallery is empty"):
        label_groups(np.zeros((0, 2), dtype=np.uint8), labels[:0])
    with pytest.raises(ShapeError, match="queries holds 8 values that are not finite"):
        rank(queries * np.nan, labels[:2], labels)


def test_equal_scores_of_different_queries_are_not_tied() -> None:
    # The worst score of one query is the best of the next, and lies beside it in memory.
    scores = np.zeros((3, 4), dtype=np.float32)
    labels = np.array([0, 0, 1, 1])
    rows, totals = flatten([rank_scores(scores, np.array([0, 1, 7]), labels)])
    assert rows == [(0, 4, 2, 0, 0), (1, 4, 2, 0, 0)]
    assert totals == [2, 2, 0]
