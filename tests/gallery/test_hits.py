from __future__ import annotations

import datetime
import json
from dataclasses import replace

import numpy as np
import pytest

from made_up_galleries import BOOKS, DIM, SUB_DIM, make_codebooks, make_queries, make_record
from phpq.codes import QueryNorm
from phpq.gallery.hits import Hit, rerank_rows, to_hit


@pytest.mark.parametrize("norm", ["unit", "raw"])
def test_reranking_equals_a_plain_loop(norm: QueryNorm) -> None:
    vectors = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float16)
    vectors[7] = vectors[3]  # a tie
    records = [replace(make_record(str(i)), embedding=vectors[i]) for i in range(20)]
    query = make_queries(1)[0]
    order, scores = rerank_rows(query, records, make_codebooks(), norm=norm)
    expected = []
    for vector in vectors.astype(np.float64):
        score = 0.0
        for book in range(BOOKS):
            part = slice(book * SUB_DIM, (book + 1) * SUB_DIM)
            asked = query[part] / np.linalg.norm(query[part]) if norm == "unit" else query[part]
            score += float(asked @ (vector[part] / np.linalg.norm(vector[part])))
        expected.append(score)
    np.testing.assert_allclose(scores, sorted(expected, reverse=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.array(expected)[order], scores, rtol=1e-5, atol=1e-6)
    places = order.tolist()
    assert places.index(3) + 1 == places.index(7)


def test_nothing_to_rerank() -> None:
    order, scores = rerank_rows(make_queries(1)[0], [], make_codebooks(), norm="unit")
    assert len(order) == len(scores) == 0


def test_a_hit_is_plain_data() -> None:
    hit = to_hit(make_record("x", label=None, day=datetime.date(2024, 1, 2)), 1.5, 3)
    assert hit == Hit(3, "x", 1.5, None, "/files/x", {"day": datetime.date(2024, 1, 2)})
    assert json.loads(json.dumps(hit.to_dict()))["metadata"] == {"day": "2024-01-02"}
