"""The best of all shards are the best of one index, ties in order of insertion."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phpq.serve.shards.merge import merge_hits
from phpq.serve.shards.requests import Hits


def best(scores: list[float], first: int, wanted: int) -> Hits:
    """Return the hits of a shard whose rows have these scores, by plain sorting."""
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:wanted]
    places = np.array(order, np.int64) + first
    values = np.array([scores[row] for row in order], np.float32)
    return Hits(places, 1000 - places, values, len(scores))


@given(
    shards=st.lists(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]), max_size=9), min_size=1),
    wanted=st.integers(1, 12),
)
def test_merging_is_searching_all(shards: list[list[float]], wanted: int) -> None:
    firsts = np.cumsum([0, *(len(shard) for shard in shards)]).tolist()
    parts = [best(s, first, wanted) for s, first in zip(shards, firsts, strict=False)]
    merged = merge_hits(parts, wanted)
    expected = best([score for shard in shards for score in shard], 0, wanted)
    assert np.array_equal(merged.places, expected.places)
    assert np.array_equal(merged.scores, expected.scores)
    assert np.array_equal(merged.offsets, 1000 - merged.places)
    assert merged.total == expected.total
