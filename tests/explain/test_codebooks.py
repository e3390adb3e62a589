from __future__ import annotations

import json
import math

import numpy as np
import pytest

from phpq.codes import CodeArray, Codebooks, QueryNorm, sign_codebooks
from phpq.errors import ConfigError, ShapeError
from phpq.explain import CodebookUsage, codebook_shares, project_codes, sample_rows, signed_parts
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


def plane_codebooks(books: int = 3, size: int = 8, sub_dim: int = 4) -> Codebooks:
    words = np.random.default_rng(0).normal(size=(books, size, sub_dim)).astype(np.float32)
    return Codebooks(words / np.linalg.norm(words, axis=2, keepdims=True))


def plane_codes(rows: int) -> CodeArray:
    return np.random.default_rng(1).integers(8, size=(rows, 3), dtype=np.uint8)


@pytest.mark.parametrize("rows", [3, 8, 200])  # fewer and more than dimensions
def test_the_plane_is_that_of_a_plain_svd(rows: int) -> None:
    codebooks, codes = plane_codebooks(), plane_codes(rows)
    points = project_codes(codebooks, codes)
    assert points.shape == (rows, 2)
    assert points.dtype == np.float32
    vectors = codebooks.decode(codes).astype(np.float64)
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :2] * values[:2]
    expected /= np.abs(expected).max()
    signs = np.sign((expected * points).sum(axis=0))
    assert points == pytest.approx(expected * signs, abs=1e-5)
    assert np.abs(points).max() == pytest.approx(1)
    for axis in points.T:
        assert axis[np.abs(axis).argmax()] > 0


def test_the_order_of_the_gallery_does_not_matter() -> None:
    codebooks, codes = plane_codebooks(), plane_codes(60)
    order = np.random.default_rng(2).permutation(60)
    assert (project_codes(codebooks, codes)[order] == project_codes(codebooks, codes[order])).all()


def test_alike_is_near() -> None:
    """Two groups that share all but one codeword each stay apart."""
    codebooks = plane_codebooks(books=8)
    rng = np.random.default_rng(3)
    codes = np.repeat(np.array([[0] * 8, [1] * 8], np.uint8), 30, axis=0)
    codes[np.arange(60), rng.integers(8, size=60)] = rng.integers(8, size=60)
    points = project_codes(codebooks, codes)
    group = np.repeat([0, 1], 30)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (group[distances.argmin(axis=1)] == group).mean() > 0.95


@pytest.mark.parametrize("codes", [[], [[1, 2, 3]], [[1, 2, 3]] * 5])
def test_a_gallery_without_any_direction(codes: list[list[int]]) -> None:
    points = project_codes(plane_codebooks(), np.array(codes, np.uint8).reshape(-1, 3))
    assert points.shape == (len(codes), 2)
    assert points.tolist() == [[0.0, 0.0]] * len(codes)


def test_two_codes_are_a_line() -> None:
    points = project_codes(plane_codebooks(), np.array([[1, 2, 3], [1, 2, 4]], np.uint8))
    assert points[:, 1].tolist() == [0, 0]
    assert sorted(points[:, 0].tolist()) == [-1, 1]


def test_rows_are_sampled_once_and_in_order() -> None:
    rows = sample_rows(1000, limit=50, seed=4)
    assert (len(rows), len(set(rows.tolist()))) == (50, 50)
    assert (np.diff(rows) > 0).all()
    assert (rows == sample_rows(1000, limit=50, seed=4)).all()
    assert (rows != sample_rows(1000, limit=50, seed=5)).any()
    assert 300 < rows.mean() < 700
    assert sample_rows(5, limit=50).tolist() == [0, 1, 2, 3, 4]
    assert sample_rows(0, limit=1).tolist() == []
    with pytest.raises(ConfigError, match="at least 1"):
        sample_rows(5, limit=0)
