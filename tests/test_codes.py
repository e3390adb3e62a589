"""Codebooks, codes and scores against plain loops, and the laws they keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.codes import (
    Codebooks,
    group_codes,
    normalise_sub_vectors,
    pack_codes,
    score_codes,
    unpack_codes,
)
from phpq.errors import ShapeError
from reference import aqd_loop, encode_loop, random_codebooks


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_sizes_and_bits(rng: np.random.Generator) -> None:
    books = random_codebooks(rng, num_codebooks=6, codebook_size=16, sub_dim=5)
    assert (books.num_codebooks, books.codebook_size, books.sub_dim) == (6, 16, 5)
    assert books.embedding_dim == 30
    # M log2 K; a published implementation multiplies by the square root of K instead.
    assert books.bits == 24
    assert random_codebooks(rng, num_codebooks=4, codebook_size=256).bits == 32


def test_codewords_survive_encode_and_decode(rng: np.random.Generator) -> None:
    books = random_codebooks(rng, num_codebooks=4, codebook_size=32, sub_dim=8)
    codes = rng.integers(0, 32, (50, 4)).astype(np.uint8)
    vectors = books.decode(codes)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(books.encode(vectors), codes)
    for row, code in zip(vectors.reshape(50, 4, 8), codes, strict=True):
        for m in range(4):
            np.testing.assert_array_equal(row[m], books.codewords[m, code[m]])


def test_encode_equals_its_twin_whatever_the_length(rng: np.random.Generator) -> None:
    books = random_codebooks(rng)
    vectors = rng.standard_normal((40, books.embedding_dim)).astype(np.float32)
    codes = books.encode(vectors)
    assert codes.dtype == np.uint8
    assert codes.tolist() == encode_loop(books.codewords, vectors)
    np.testing.assert_array_equal(books.encode(normalise_sub_vectors(vectors, 3)), codes)


def test_the_first_of_equal_codewords_wins() -> None:
    words = np.zeros((1, 4, 2), dtype=np.float32)
    words[0, :, 0] = 1.0
    assert Codebooks(words).encode(np.ones((3, 2), dtype=np.float32)).tolist() == [[0], [0], [0]]


def test_batch_size_never_changes_codes(rng: np.random.Generator) -> None:
    # Half-way between two codewords the choice depends on the last bit, which a matrix product
    # rounds differently for one row and for many.
    books = random_codebooks(rng, num_codebooks=2, codebook_size=16, sub_dim=40)
    pairs = rng.integers(0, 16, (2, 60, 2)).astype(np.uint8)
    vectors = books.decode(pairs[0]) + books.decode(pairs[1])
    codes = books.encode(vectors)
    for size in (1, 7, 31):
        parts = [books.encode(vectors[i : i + size]) for i in range(0, 60, size)]
        np.testing.assert_array_equal(np.concatenate(parts), codes)
    np.testing.assert_array_equal(books.encode(vectors[::-1])[::-1], codes)
    assert codes.tolist() == encode_loop(books.codewords, vectors)
    chosen = (codes == pairs[0]) | (codes == pairs[1])
    assert chosen.all()


def test_zero_sub_vectors_take_the_first_codeword(rng: np.random.Generator) -> None:
    books = random_codebooks(rng)
    assert books.encode(np.zeros((2, 12), dtype=np.float32)).tolist() == [[0, 0, 0]] * 2


@given(seed=st.integers(0, 2**32 - 1), books=st.integers(1, 9), size=st.sampled_from([2, 4, 16]))
@settings(max_examples=25)
def test_aqd_by_tables_is_aqd_by_loops_and_by_reconstruction(
    seed: int, books: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=size, sub_dim=3)
    queries = rng.standard_normal((4, books * 3)).astype(np.float32)
    codes = rng.integers(0, size, (9, books)).astype(np.uint8)
    for norm, unit in (("unit", True), ("raw", False)):
        tables = codebooks.lookup_tables(queries, norm=norm)  # type: ignore[arg-type]
        scores = score_codes(tables, codes)
        assert scores.dtype == np.float32
        loops = [
            [aqd_loop(codebooks.codewords, q, code.tolist(), unit=unit) for code in codes]
            for q in queries
        ]
        np.testing.assert_allclose(scores, loops, atol=1e-5)
        vectors = normalise_sub_vectors(queries, books) if unit else queries
        np.testing.assert_allclose(scores, vectors @ codebooks.decode(codes).T, atol=1e-5)


def test_equal_codes_get_bit_equal_scores_in_every_block(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = random_codebooks(rng, num_codebooks=8, codebook_size=16)
    code = rng.integers(0, 16, (1, 8)).astype(np.uint8)
    codes = np.repeat(code, 33, axis=0)
    tables = books.lookup_tables(rng.standard_normal((20, 32)).astype(np.float32))
    whole = score_codes(tables, codes)
    assert all(len(set(row)) == 1 for row in whole.tolist())
    monkeypatch.setattr("phpq.codes._SCORE_BLOCK", 100)
    np.testing.assert_array_equal(score_codes(tables, codes), whole)


def test_sub_vectors_have_unit_length_and_zero_stays_zero(rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((5000, 12)).astype(np.float32)
    vectors[3, 4:8] = 0
    before = vectors.copy()
    unit = normalise_sub_vectors(vectors, 3)
    np.testing.assert_array_equal(vectors, before)
    lengths = np.linalg.norm(unit.reshape(5000, 3, 4), axis=2)
    assert lengths[3, 1] == 0
    lengths[3, 1] = 1
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    # Lengths whose squares leave the range of float32 are no trouble.
    huge = np.array([[3e30, 4e30]], dtype=np.float32)
    np.testing.assert_allclose(normalise_sub_vectors(huge, 1), [[0.6, 0.8]], rtol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 8), books=st.integers(1, 17))
@settings(max_examples=40)
def test_packing_is_undone_and_as_short_as_can_be(seed: int, bits: int, books: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (5, books)).astype(np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (5, -(-books * bits // 8))
    np.testing.assert_array_equal(unpack_codes(packed, books, bits_per_index=bits), codes)


def test_packing_writes_the_lowest_bit_first() -> None:
    codes = np.array([[0b001, 0b110, 0b101]], dtype=np.uint8)
    assert pack_codes(codes, 3).tolist() == [[0b01_110_001, 0b1]]
    assert pack_codes(np.zeros((0, 3), np.uint8), 3).shape == (0, 2)


@pytest.mark.parametrize("books", [1, 4, 8, 11])
def test_groups_partition_the_rows(rng: np.random.Generator, books: int) -> None:
    codes = rng.integers(0, 3, (200, books)).astype(np.uint8)
    groups = group_codes(codes)
    assert groups.codes.tolist() == sorted({tuple(code): code for code in codes.tolist()}.values())
    np.testing.assert_array_equal(groups.codes[groups.group_of_row], codes)
    assert groups.sizes.tolist() == np.bincount(groups.group_of_row).tolist()
    shuffled = group_codes(codes[rng.permutation(200)])
    np.testing.assert_array_equal(shuffled.codes, groups.codes)
    np.testing.assert_array_equal(shuffled.sizes, groups.sizes)


def test_fingerprint_sees_every_value_and_the_shape(rng: np.random.Generator) -> None:
    words = random_codebooks(rng).codewords
    print_one = Codebooks(words.copy()).fingerprint()
    assert print_one == Codebooks(words.copy()).fingerprint()
    assert len(print_one) == 64
    changed = words.copy()
    changed[0, 0, 0] = np.nextafter(changed[0, 0, 0], np.float32(2))
    assert Codebooks(changed).fingerprint() != print_one


def test_codewords_are_a_read_only_copy(rng: np.random.Generator) -> None:
    words = random_codebooks(rng).codewords.copy()
    books = Codebooks(words)
    words[:] = 0
    assert np.abs(books.codewords).sum() > 0
    with pytest.raises(ValueError, match="read-only"):
        books.codewords[0, 0, 0] = 1


def test_bad_codebooks_are_refused(rng: np.random.Generator) -> None:
    words = random_codebooks(rng).codewords
    with pytest.raises(ShapeError, match=r"shape \(3, 6, 4\); expected \(M, K, d\) with K a power"):
        Codebooks(words[:, :6])
    with pytest.raises(ShapeError, match="a row of length 2; expected unit length"):
        Codebooks(words * 2)
    with pytest.raises(ShapeError, match="of 3 dimensions"):
        Codebooks(words[0])
    broken = words.copy()
    broken[0, 0, 0] = np.nan
    with pytest.raises(ShapeError, match="codewords holds 1 values that are not finite"):
        Codebooks(broken)


def test_public_doors_name_what_is_wrong(rng: np.random.Generator) -> None:
    books = random_codebooks(rng)
    good = np.zeros((2, 3), dtype=np.uint8)
    with pytest.raises(ShapeError, match=r"embeddings has shape \(2, 5\); expected \(N, 12\)"):
        books.encode(np.zeros((2, 5), dtype=np.float32))
    with pytest.raises(ShapeError, match="dtype 'int64'; expected a float array"):
        books.encode(np.zeros((2, 12), dtype=np.int64))
    with pytest.raises(ShapeError, match="queries holds 24 values that are not finite"):
        books.lookup_tables(np.full((2, 12), np.inf, dtype=np.float32))
    with pytest.raises(ShapeError, match="not finite in float32"):
        books.encode(np.full((2, 12), 1e300))
    with pytest.raises(ShapeError, match="norm='cosine' is not known; use 'unit'"):
        books.lookup_tables(np.ones((1, 12), dtype=np.float32), norm="cosine")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="holds the index 8; expected 0 to 7"):
        books.decode(good + np.uint8(8))
    with pytest.raises(ShapeError, match=r"codes has shape \(2, 2\); expected \(N, 3\)"):
        books.decode(good[:, :2])
    with pytest.raises(ShapeError, match="is a 'list'; expected a uint8 array"):
        books.decode([[0, 1, 2]])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"expected \(N, M >= 1\)"):
        group_codes(good[:, :0])
    with pytest.raises(ShapeError, match="bits_per_index=9 must be 1 to 8"):
        pack_codes(good, 9)
    with pytest.raises(ShapeError, match="12 columns, which 5 sub-vectors do not divide"):
        normalise_sub_vectors(np.ones((1, 12), dtype=np.float32), 5)
