"""Binary codes in the product-code pipeline give exactly the Hamming ranking."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from phpq.codes import hamming_distances, pack_signs, sign_codebooks
from phpq.errors import ShapeError
from phpq.index import CodeIndex

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("bits", [8, 16, 48, 64])
def test_scores_are_bits_minus_twice_the_distance(bits: int) -> None:
    values = GENERATOR.normal(size=(50, bits)).astype(np.float32)
    signs = np.where(values >= 0, 1, -1).astype(np.float32)
    books = sign_codebooks(bits)
    codes = books.encode(signs)
    np.testing.assert_array_equal(codes, pack_signs(values))
    np.testing.assert_array_equal(books.decode(codes), signs)
    distances = np.array([[np.sum((a >= 0) != (b >= 0)) for b in values] for a in values])
    np.testing.assert_array_equal(hamming_distances(codes, codes), distances)
    found = CodeIndex(books, codes).search(signs, len(values), query_norm="raw")
    order = np.argsort(distances, axis=1, kind="stable")  # ties in order of insertion
    np.testing.assert_array_equal(found.ids, order)
    np.testing.assert_array_equal(
        found.scores, bits - 2 * np.take_along_axis(distances, order, axis=1)
    )


def test_distances_are_those_of_faiss() -> None:
    packed = pack_signs(GENERATOR.normal(size=(40, 32)).astype(np.float32))
    index = faiss.IndexBinaryFlat(32)
    index.add(packed)
    distances, rows = index.search(packed[:7], 40)
    ours = hamming_distances(packed[:7], packed)
    np.testing.assert_array_equal(distances, np.take_along_axis(ours, rows, axis=1))


def test_zero_is_positive() -> None:
    assert pack_signs(np.zeros((1, 8), np.float32)).tolist() == [[255]]


@pytest.mark.parametrize("bits", [0, 4, 12, -8])
def test_lengths_that_do_not_fill_bytes_are_refused(bits: int) -> None:
    with pytest.raises(ShapeError, match="multiple of 8"):
        sign_codebooks(bits)


def test_ragged_signs_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 8"):
        pack_signs(np.zeros((1, 12), np.float32))
