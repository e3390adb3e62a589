from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import CodeArray, Codebooks
from phpq.errors import ConfigError
from phpq.explain import project_codes, sample_rows


def some_codebooks(books: int = 3, size: int = 8, sub_dim: int = 4) -> Codebooks:
    words = np.random.default_rng(0).normal(size=(books, size, sub_dim)).astype(np.float32)
    return Codebooks(words / np.linalg.norm(words, axis=2, keepdims=True))


def some_codes(rows: int) -> CodeArray:
    return np.random.default_rng(1).integers(8, size=(rows, 3), dtype=np.uint8)


@pytest.mark.parametrize("rows", [3, 8, 200])  # fewer and more than dimensions
def test_the_plane_is_that_of_a_plain_svd(rows: int) -> None:
    codebooks, codes = some_codebooks(), some_codes(rows)
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
    codebooks, codes = some_codebooks(), some_codes(60)
    order = np.random.default_rng(2).permutation(60)
    assert (project_codes(codebooks, codes)[order] == project_codes(codebooks, codes[order])).all()


def test_alike_is_near() -> None:
    """Two groups that share all but one codeword each stay apart."""
    codebooks = some_codebooks(books=8)
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
    points = project_codes(some_codebooks(), np.array(codes, np.uint8).reshape(-1, 3))
    assert points.shape == (len(codes), 2)
    assert points.tolist() == [[0.0, 0.0]] * len(codes)


def test_two_codes_are_a_line() -> None:
    points = project_codes(some_codebooks(), np.array([[1, 2, 3], [1, 2, 4]], np.uint8))
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
