from __future__ import annotations

import json
import math

import numpy as np
import pytest

from phpq.codes import CodeArray
from phpq.explain import CodebookUsage


def some_codes(rows: int = 500) -> CodeArray:
    rng = np.random.default_rng(0)
    return np.minimum(rng.geometric(0.3, size=(rows, 3)), 16).astype(np.uint8) - 1


def usage_of(codes: CodeArray, size: int) -> list[CodebookUsage]:
    counts = (np.bincount(column, minlength=size) for column in codes.T)
    return [CodebookUsage(book, images) for book, images in enumerate(counts)]


def test_usage_against_a_plain_count() -> None:
    codes = some_codes()
    usage = usage_of(codes, 16)
    assert [one.codebook for one in usage] == [0, 1, 2]
    for book, one in enumerate(usage):
        counts = [sum(1 for row in codes if row[book] == word) for word in range(16)]
        assert one.images.tolist() == counts
        assert one.used == sum(1 for count in counts if count)
        assert one.dead == 16 - one.used
        entropy = -sum(c / 500 * math.log2(c / 500) for c in counts if c)
        assert one.entropy_bits == pytest.approx(entropy)
        best = sorted((w for w in range(16) if counts[w]), key=lambda w: (-counts[w], w))
        assert one.top_words(5).tolist() == best[:5]
        assert one.top_words(99).tolist() == best


def test_entropy_at_its_ends() -> None:
    even = np.arange(16, dtype=np.uint8)[:, None]
    assert usage_of(even, 16)[0].entropy_bits == pytest.approx(4)
    assert str(usage_of(np.zeros((5, 1), np.uint8), 16)[0].entropy_bits) == "0.0"
    empty = usage_of(np.empty((0, 2), np.uint8), 16)[1]
    assert (empty.used, empty.dead, empty.entropy_bits) == (0, 16, 0)
    assert empty.top_words(3).tolist() == []


def test_plain_data_for_json() -> None:
    codes = np.array([[1, 0], [1, 0], [2, 0]], np.uint8)
    first, second = (one.to_dict(limit=1) for one in usage_of(codes, 4))
    assert first["words"] == [{"word": 1, "images": 2}]
    assert (second["used"], second["dead"], second["entropy_bits"]) == (1, 3, 0)
    json.dumps([first, second])
