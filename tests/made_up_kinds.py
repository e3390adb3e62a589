"""Embeddings of made-up kinds: around a centre for each."""

from __future__ import annotations

import numpy as np

from phpq.additive import unit_rows
from phpq.codes import FloatArray

KINDS = ("finch", "heron", "owl", "wren")


def made_up(
    kinds: int = 4, per_kind: int = 12, dim: int = 24, seed: int = 0
) -> tuple[FloatArray, list[str]]:
    """Unit embeddings around a centre for each kind, and their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(kinds, dim))
    numbers = np.repeat(np.arange(kinds), per_kind)
    rows = unit_rows(
        (centres[numbers] + 0.6 * rng.normal(size=(len(numbers), dim))).astype(np.float32)
    )
    names = KINDS if kinds <= len(KINDS) else [f"kind {n:05}" for n in range(kinds)]
    return rows, [names[n] for n in numbers]
