from __future__ import annotations

import numpy as np
import pytest

from phpq.binary_codes import sign_codebooks
from phpq.codes import Codebooks, QueryNorm
from phpq.errors import ShapeError
from phpq.explain import codebook_shares, signed_parts
from phpq.index import CodeIndex


def some_codebooks(books: int = 4, size: int = 8, sub_dim: int = 3) -> Codebooks:
    words = np.random.default_rng(0).normal(size=(books, size, sub_dim)).astype(np.float32)
    return Codebooks(words / np.linalg.norm(words, axis=2, keepdims=True))


@pytest.mark.parametrize("norm", ["unit", "raw"])
def test_shares_add_up_to_the_score_of_the_index(norm: QueryNorm) -> None:
    rng = np.random.default_rng(1)
    codebooks = some_codebooks()
    codes = rng.integers(8, size=(200, 4), dtype=np.uint8)
    lengths = np.repeat([10.0, 1.0, 0.1, 3.0], 3)  # so that the norm matters
    queries = (rng.normal(size=(5, 12)) * lengths).astype(np.float32)
    found = CodeIndex(codebooks, codes).search(queries, 20, query_norm=norm)
    for query, rows, scores in zip(queries, found.ids, found.scores, strict=True):
        for row, score in zip(rows, scores, strict=True):
            shares = codebook_shares(codebooks, query, codes[row], query_norm=norm)
            assert shares.shape == (4,)
            assert shares.dtype == np.float32
            assert shares.sum() == pytest.approx(score, rel=1e-5, abs=1e-5)


def test_a_share_is_the_inner_product_of_its_own_part() -> None:
    codebooks = some_codebooks()
    query = np.random.default_rng(2).normal(size=12).astype(np.float32)
    code = np.array([3, 0, 7, 5], np.uint8)
    for norm in ("unit", "raw"):
        shares = codebook_shares(codebooks, query, code, query_norm=norm)
        for book in range(4):
            part = query[3 * book : 3 * book + 3].astype(np.float64)
            if norm == "unit":
                part /= np.sqrt(sum(value * value for value in part))
            expected = sum(part * codebooks.codewords[book, code[book]])
            assert shares[book] == pytest.approx(expected, abs=1e-5)


def test_shares_of_binary_codes_count_equal_bits() -> None:
    codebooks = sign_codebooks(16)
    query = np.where(np.random.default_rng(3).random(16) < 0.5, -1, 1).astype(np.float32)
    own = codebooks.encode(query[None])[0]
    assert codebook_shares(codebooks, query, own, query_norm="raw").tolist() == [8, 8]
    other = own ^ np.array([0b111, 0], np.uint8)
    assert codebook_shares(codebooks, query, other, query_norm="raw").tolist() == [2, 8]


def test_parts_keep_the_signs_and_add_up_to_one_in_size() -> None:
    parts = signed_parts(np.array([0.5, 1.0, -0.5], np.float32))
    assert parts.tolist() == [0.25, 0.5, -0.25]
    assert signed_parts(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    codebooks = some_codebooks()
    query, code = np.zeros(12, np.float32), np.zeros(4, np.uint8)
    with pytest.raises(ShapeError, match="one query at a time"):
        codebook_shares(codebooks, query[None], code)
    with pytest.raises(ShapeError, match="the code of one image"):
        codebook_shares(codebooks, query, code[None])
    with pytest.raises(ShapeError, match="same model"):
        codebook_shares(codebooks, query, np.full(4, 8, np.uint8))
    with pytest.raises(ShapeError, match="same model"):
        codebook_shares(codebooks, query, np.zeros(5, np.uint8))
