"""Which rows of an answer tie, and what float scores say of them, beside plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from made_up_galleries import DIM, make_codebooks, make_queries, plain_float_score
from phpq.codes import QueryNorm
from phpq.index import ties as module
from phpq.index.ties import float_scores, tied_blocks


@pytest.mark.parametrize("norm", ["unit", "raw"])
def test_float_scores_equal_a_plain_loop(norm: QueryNorm) -> None:
    rows = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float16)
    rows[7] = rows[3]
    query = make_queries(1)[0]
    scores = float_scores(query, rows, make_codebooks(), norm=norm)
    expected = [plain_float_score(query, row, norm) for row in rows]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert scores[3] == scores[7]
    assert len(float_scores(query, rows[:0], make_codebooks(), norm=norm)) == 0


def test_blocks_are_those_of_plain_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    few_at_once = 7
    monkeypatch.setattr(module, "TIE_ROWS", few_at_once)
    generator = np.random.default_rng(0)
    for _ in range(200):
        sizes = generator.integers(1, 20, generator.integers(0, 6))
        scores = np.repeat(-np.arange(len(sizes), dtype=np.float32), sizes)
        first = int(generator.integers(0, len(scores) + 3))
        shown = slice(first, first + int(generator.integers(1, 12)))
        expected, end = [], 0
        for size in sizes.tolist():
            start, end = end, end + size
            for begin in range(start, end, few_at_once):
                block = range(begin, min(begin + few_at_once, end))
                if len(block) > 1 and set(block) & set(range(shown.start, shown.stop)):
                    expected.append(slice(block.start, block.stop))
        assert list(tied_blocks(scores, shown)) == expected
