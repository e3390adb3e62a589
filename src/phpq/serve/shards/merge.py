"""Hits of several shards in, the hits of one index over all their rows out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phpq.serve.shards.requests import Hits


def merge_hits(parts: Sequence[Hits], wanted: int) -> Hits:
    """Put the best hits of shards together.

    Every row of the answer is among the best of its own shard, so that nothing is lost; and shards
    are ranges of the order of insertion, so that a stable sort leaves ties in that order.

    Args:
        parts: One a shard, in the order of the shards, each with its best `wanted` rows.
        wanted: How many.

    Returns:
        Bit for bit what one index over all rows returns.
    """
    scores = np.concatenate([part.scores for part in parts])
    order = np.argsort(-scores, kind="stable")[:wanted]
    return Hits(
        places=np.concatenate([part.places for part in parts])[order],
        offsets=np.concatenate([part.offsets for part in parts])[order],
        scores=scores[order],
        total=sum(part.total for part in parts),
    )
