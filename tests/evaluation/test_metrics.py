"""Tie-aware measures against brute force over every order of the tied items."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.codes import FloatArray, IntArray
from phpq.errors import ShapeError
from phpq.evaluation._ranking import TieGroups, label_groups, rank_codes
from phpq.evaluation.metrics import (
    RetrievalScores,
    average_precision_range,
    code_health,
    measure,
    precision_at,
    precision_at_recall,
    recall_at,
    tie_aware_average_precision,
)
from phpq.index import CodeIndex
from reference import (
    average_precision_loop,
    average_precision_over_permutations,
    average_precisions_of_orders,
    map_at_r_loop,
    orders_of_ties,
    precision_at_loop,
    precision_at_recall_loop,
    random_codebooks,
    rank_scores,
    relevance,
)


def rank(scores: object, relevant: object) -> TieGroups:
    """Rank one query whose relevant items are given."""
    row = np.asarray(scores, dtype=np.float32)[None]
    labels = np.asarray(relevant).astype(np.int64)
    return rank_scores(row, np.array([1]), labels)


ranked_list = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=7).filter(
    lambda items: any(hit for _, hit in items)
)
long_list = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=60).filter(
    lambda items: any(hit for _, hit in items)
)


@given(items=ranked_list)
@settings(max_examples=60)
def test_expected_ap_is_the_mean_over_all_orders_of_ties(items: list[tuple[int, bool]]) -> None:
    scores, relevant = zip(*items, strict=True)
    fast = tie_aware_average_precision(rank(scores, relevant))
    twin = average_precision_over_permutations(scores, relevant)
    assert fast.tolist() == [pytest.approx(twin, abs=1e-12)]


@given(items=ranked_list)
@settings(max_examples=60)
def test_the_range_is_that_of_all_orders_of_ties(items: list[tuple[int, bool]]) -> None:
    scores, relevant = zip(*items, strict=True)
    worst, best = average_precision_range(rank(scores, relevant))
    values = average_precisions_of_orders(scores, relevant)
    assert worst.tolist() == [pytest.approx(min(values), abs=1e-12)]
    assert best.tolist() == [pytest.approx(max(values), abs=1e-12)]


@given(items=ranked_list)
@settings(max_examples=60)
def test_map_at_r_and_recall_are_means_over_all_orders_of_ties(
    items: list[tuple[int, bool]],
) -> None:
    scores, relevant = zip(*items, strict=True)
    groups, total = rank(scores, relevant), sum(relevant)
    orders = orders_of_ties(scores, relevant)
    at_r = [map_at_r_loop(order) for order in orders]
    found = tie_aware_average_precision(groups, np.array([total]))
    assert found.tolist() == [pytest.approx(math.fsum(at_r) / len(orders), abs=1e-12)]
    for k in (1, 2, 4, 8):
        seen = sum(any(order[:k]) for order in orders) / len(orders)
        assert recall_at(groups, [k]).tolist() == [[pytest.approx(seen, abs=1e-12)]]


def test_without_ties_it_is_plain_average_precision() -> None:
    rng = np.random.default_rng(0)
    relevant = rng.random(500) < 0.1
    scores = -np.arange(500)
    ap = tie_aware_average_precision(rank(scores, relevant))[0]
    assert ap == pytest.approx(average_precision_loop(relevant.tolist()), abs=1e-12)


def test_all_tied_scores_the_share_of_relevant_items_or_more() -> None:
    relevant = np.arange(1000) < 100
    ap = tie_aware_average_precision(rank(np.zeros(1000), relevant))[0]
    assert 0.1 < ap < 0.11  # 0.1 plus the luck of early hits


@given(items=long_list, n=st.integers(1, 80))
@settings(max_examples=60)
def test_precision_at_equals_its_twin(items: list[tuple[int, bool]], n: int) -> None:
    scores, relevant = zip(*items, strict=True)
    found = precision_at(rank(scores, relevant), [n, 1])
    assert found[0, 0] == pytest.approx(precision_at_loop(scores, relevant, n), abs=1e-12)
    assert found[0, 1] == pytest.approx(precision_at_loop(scores, relevant, 1), abs=1e-12)


@given(items=long_list, points=st.sampled_from([2, 11, 101]))
@settings(max_examples=60)
def test_precision_at_recall_equals_its_twin(items: list[tuple[int, bool]], points: int) -> None:
    scores, relevant = zip(*items, strict=True)
    found = precision_at_recall(rank(scores, relevant), points)[0]
    np.testing.assert_allclose(found, precision_at_recall_loop(scores, relevant, points), atol=1e-9)
    assert (np.diff(found) <= 1e-9).all()  # interpolated precision never rises with recall


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_the_order_of_the_gallery_never_changes_a_measure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=2, codebook_size=4, sub_dim=2)
    codes = rng.integers(0, 4, (80, 2)).astype(np.uint8)
    labels, query_labels = rng.integers(0, 6, 80), rng.integers(0, 6, 20)
    tables = codebooks.lookup_tables(rng.standard_normal((20, 4)).astype(np.float32))
    order = rng.permutation(80)

    def measured(rows: IntArray) -> RetrievalScores:
        gallery = label_groups(codes[rows], labels[rows])
        found = measure(rank_codes(tables, query_labels, gallery=gallery), cutoffs=(1, 10, 100))
        return replace(found, precision_at_1_served=0)  # what is served may depend on the order

    assert measured(np.arange(80)) == measured(order)  # to the last bit


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_the_first_hit_served_is_that_of_an_index(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=2, codebook_size=4, sub_dim=2)
    codes = rng.integers(0, 4, (80, 2)).astype(np.uint8)
    labels, query_labels = rng.integers(0, 6, 80), rng.integers(0, 7, 20)
    queries = rng.standard_normal((20, 4)).astype(np.float32)
    tables = codebooks.lookup_tables(queries)
    gallery = label_groups(codes, labels)
    found = measure(rank_codes(tables, query_labels, gallery=gallery), cutoffs=(1,))
    hits = 0
    for query in range(20):
        best, first = -math.inf, -1
        for row, code in enumerate(codes):  # a later row must be better, not equal
            score = tables[query, 0, code[0]] + tables[query, 1, code[1]]
            if score > best:
                best, first = score, row
        hits += int(labels[first] == query_labels[query])
    assert found.precision_at_1_served == pytest.approx(hits / found.queries)
    served = CodeIndex(codebooks, codes).search(queries, 1).ids[:, 0]
    assert hits == np.count_nonzero(labels[served] == query_labels)


def test_ties_are_served_in_the_order_of_the_gallery() -> None:
    codes = np.zeros((4, 1), np.uint8)  # all tied
    tables = np.zeros((1, 1, 2), np.float32)
    for labels, served in (([1, 0, 0, 0], 1.0), ([0, 1, 1, 1], 0.0)):
        gallery = label_groups(codes, np.array(labels))
        found = measure(rank_codes(tables, np.array([1]), gallery=gallery), cutoffs=(1,))
        assert found.precision_at_1_served == served
        assert found.precision_at[1] == pytest.approx(sum(labels) / 4)
        assert found.to_dict()["precision_at_1_served"] == 100 * served


def test_means_equal_loops_over_queries_and_skip_queries_without_relevant_items() -> None:
    rng = np.random.default_rng(5)
    scores: FloatArray = rng.integers(0, 4, (12, 7)).astype(np.float32)
    gallery_labels, query_labels = rng.integers(0, 3, 7), rng.integers(0, 4, 12)
    query_labels[4] = 99
    relevant = relevance(query_labels, gallery_labels)
    pairs = [(s.tolist(), r) for s, r in zip(scores, relevant, strict=True) if any(r)]
    blocks = [rank_scores(scores, query_labels, gallery_labels)]
    result = measure(blocks, cutoffs=(1, 3))
    expected = [average_precision_over_permutations(s, r) for s, r in pairs]
    assert result.map == pytest.approx(math.fsum(expected) / len(pairs), abs=1e-12)
    every = [average_precisions_of_orders(s, r) for s, r in pairs]
    for end, choose in zip(result.map_range, (min, max), strict=True):
        assert end == pytest.approx(math.fsum(map(choose, every)) / len(pairs), abs=1e-12)
    assert (result.queries, result.excluded) == (len(pairs), 12 - len(pairs))
    assert result.excluded >= 1
    assert result.gallery == 7
    for n in (1, 3):
        twin = [precision_at_loop(s, r, n) for s, r in pairs]
        assert result.precision_at[n] == pytest.approx(math.fsum(twin) / len(pairs), abs=1e-12)
    curves = [precision_at_recall_loop(s, r, 11) for s, r in pairs]
    np.testing.assert_allclose(list(result.pr_curve.values()), np.mean(curves, axis=0), atol=1e-9)
    assert list(result.pr_curve) == [i / 10 for i in range(11)]
    first = [r[s.index(max(s))] for s, r in pairs]  # of equal scores the first
    assert result.precision_at_1_served == pytest.approx(sum(first) / len(pairs))


def test_no_query_with_relevant_items_gives_zero_and_not_nan() -> None:
    scores = np.zeros((2, 3), dtype=np.float32)
    groups = rank_scores(scores, np.array([5, 6]), np.array([0, 1, 2]))
    result = measure([groups], cutoffs=(1,))
    assert (result.map, result.queries, result.excluded) == (0.0, 0, 2)
    assert result.map_range == (0.0, 0.0)
    assert result.precision_at == {1: 0.0}
    assert result.precision_at_1_served == 0.0
    assert set(result.pr_curve.values()) == {0.0}


def test_a_large_gallery_keeps_its_precision() -> None:
    rng = np.random.default_rng(6)
    scores = rng.integers(0, 4000, 20_000)
    relevant = rng.random(20_000) < 0.01
    groups = rank(scores, relevant)
    fast = tie_aware_average_precision(groups)[0]
    total = []
    for n, r, before, hits in zip(
        groups.size, groups.relevant, groups.size_before, groups.relevant_before, strict=True
    ):
        for i in range(1, int(n) + 1):
            inside = (i - 1) * (r - 1) / max(n - 1, 1)
            total.append(r / n * (hits + 1 + inside) / (before + i))
    assert fast == pytest.approx(math.fsum(total) / relevant.sum(), rel=1e-10)


def test_code_health_counts_what_is_used() -> None:
    codes = np.array([[0, 1], [0, 2], [0, 1], [3, 1]], dtype=np.uint8)
    health = code_health(codes, 4)
    assert health.rows == 4
    assert health.distinct_codes == 3
    assert health.dead_codewords == (2, 2)
    assert health.dead_total == 4
    assert list(health.entropy_bits) == pytest.approx([0.8112781, 0.8112781])
    assert health.largest_share == 0.5
    even = code_health(np.arange(256, dtype=np.uint8)[:, None], 256)
    assert even.mean_entropy_bits == pytest.approx(8)
    assert even.dead_total == 0
    collapsed = code_health(np.zeros((9, 3), dtype=np.uint8), 8).to_dict()
    assert collapsed["entropy_bits"] == [0.0, 0.0, 0.0]
    assert (collapsed["distinct_codes"], collapsed["dead_total"]) == (1, 21)
    assert collapsed["largest_share"] == 1.0


def test_bad_arguments_are_refused() -> None:
    groups = rank([1, 2], [0, 1])
    with pytest.raises(ShapeError, match="cutoff=0 is not allowed; expected a whole number >= 1"):
        precision_at(groups, [0])
    with pytest.raises(ShapeError, match="points=1 is not allowed"):
        precision_at_recall(groups, 1)
    with pytest.raises(ShapeError, match="holds the index 9"):
        code_health(np.full((1, 1), 9, dtype=np.uint8), 8)
    with pytest.raises(ShapeError, match="codes has no rows"):
        code_health(np.zeros((0, 1), dtype=np.uint8), 8)
