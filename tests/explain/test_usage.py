from __future__ import annotations

import json
import math

import numpy as np
import pytest

from phpq.errors import ConfigError, ShapeError
from phpq.explain import codebook_usage, images_of_codeword


def some_codes(rows: int = 500) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    rng = np.random.default_rng(0)
    return np.minimum(rng.geometric(0.3, size=(rows, 3)), 16).astype(np.uint8) - 1


def test_usage_against_a_plain_count() -> None:
    codes = some_codes()
    usage = codebook_usage(codes, 16)
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
    assert codebook_usage(even, 16)[0].entropy_bits == pytest.approx(4)
    assert str(codebook_usage(np.zeros((5, 1), np.uint8), 16)[0].entropy_bits) == "0.0"
    empty = codebook_usage(np.empty((0, 2), np.uint8), 16)[1]
    assert (empty.used, empty.dead, empty.entropy_bits) == (0, 16, 0)
    assert empty.top_words(3).tolist() == []


def test_plain_data_for_json() -> None:
    codes = np.array([[1, 0], [1, 0], [2, 0]], np.uint8)
    first, second = (one.to_dict(limit=1) for one in codebook_usage(codes, 4))
    assert first["words"] == [{"word": 1, "images": 2}]
    assert (second["used"], second["dead"], second["entropy_bits"]) == (1, 3, 0)
    json.dumps([first, second])


def test_the_images_of_a_codeword() -> None:
    codes = some_codes()
    for word in range(16):
        rows = [row for row in range(500) if codes[row, 1] == word]
        every = images_of_codeword(codes, 1, word, codebook_size=16, limit=500)
        assert (every.rows.tolist(), every.total) == (rows, len(rows))
        some = images_of_codeword(codes, 1, word, codebook_size=16, limit=7)
        assert some.total == len(rows)
        assert len(some.rows) == min(7, len(rows))
        assert set(some.rows.tolist()) <= set(rows)
        assert (np.diff(some.rows) > 0).all()


def test_a_few_of_many_images_come_from_everywhere() -> None:
    rows = images_of_codeword(np.zeros((1000, 1), np.uint8), 0, 0, limit=4).rows
    assert rows.tolist() == [0, 250, 500, 750]


def test_what_is_not_there_is_refused() -> None:
    codes = some_codes()
    for codebook, word in ((3, 0), (-1, 0), (0, 16), (0, -1)):
        with pytest.raises(ShapeError, match="is not there"):
            images_of_codeword(codes, codebook, word, codebook_size=16)
    with pytest.raises(ConfigError, match="at least 1"):
        images_of_codeword(codes, 0, 0, limit=0)
    with pytest.raises(ShapeError, match="holds the index"):
        codebook_usage(codes, 8)
