"""The compiled loops by themselves: rows offered to heaps come out as a plain loop ranks them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.index._cells import search_part
from phpq.index._kernels import NO_ROW, sort_heaps
from phpq.index._part import build_part
from reference import search_loop


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    top_k=st.integers(1, 50),
    base=st.sampled_from([0, 5_000_000_000]),
)
@settings(max_examples=60)
def test_rows_offered_to_heaps_come_out_best_first(
    seed: int, rows: int, top_k: int, base: int
) -> None:
    rng = np.random.default_rng(seed)
    tables = np.round(rng.standard_normal((2, 3, 4))).astype(np.float32)
    codes = rng.integers(0, 4, (rows, 3)).astype(np.uint8)
    scores = np.full((2, top_k), -np.inf, dtype=np.float32)
    ids = np.full((2, top_k), NO_ROW, dtype=np.int64)
    part = build_part(codes, base, 4)
    search_part(tables, part, np.empty(0, dtype=np.bool_), scores, ids)
    sort_heaps(scores, ids)
    for q in range(2):
        twin = search_loop(tables[q], codes, top_k)
        rest = top_k - len(twin)
        assert ids[q].tolist() == [row + base for row, _ in twin] + [-1] * rest
        assert scores[q].tolist() == [score for _, score in twin] + [-np.inf] * rest
