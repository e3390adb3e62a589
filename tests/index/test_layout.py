"""The memory of an index, computed before it is built, is what it takes."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import Codebooks, group_codes
from phpq.index import CodeIndex
from phpq.index.engine import most_bytes, part_layout


@pytest.mark.parametrize("books", [1, 2, 3, 8])
@pytest.mark.parametrize("kinds", [3, 700, 4000, 10**6])
def test_predicted_bytes_are_the_bytes_of_the_index(books: int, kinds: int) -> None:
    rng = np.random.default_rng(books)
    sample = rng.integers(0, 16, (min(kinds, 6000), books), dtype=np.uint8)
    codes = sample[rng.integers(0, len(sample), 6000)] if kinds < 6000 else sample
    words = np.tile(np.eye(16, dtype=np.float32), (books, 1, 1))
    index = CodeIndex(Codebooks(words), codes).build()
    distinct = len(group_codes(codes).sizes)
    layout = part_layout(6000, distinct, num_codebooks=books, codebook_size=16)
    predicted = layout.memory_bytes
    assert predicted == index.memory_bytes()


@pytest.mark.parametrize("books", [2, 4, 6, 8])
def test_the_promised_limit_holds_for_any_number_of_distinct_codes(books: int) -> None:
    rows = 10_000_000
    layouts = [
        part_layout(rows, distinct, num_codebooks=books)
        for distinct in np.linspace(1, rows, 50).astype(int).tolist()
    ]
    most = most_bytes(rows, num_codebooks=books)
    assert all(layout.memory_bytes <= most for layout in layouts)
    assert max(layout.memory_bytes for layout in layouts) > most / 2
    assert {layout.grouped for layout in layouts} == {True, False}
    assert layouts[0].memory_bytes == 4 * rows + books + 8  # row numbers, one code, two places
