"""Our codes inside faiss give our scores: by tables, by reconstruction, and by IndexPQ."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import normalise_sub_vectors, score_codes
from phpq.errors import ShapeError
from phpq.index import CodeIndex, fit_pq, to_faiss
from reference import random_codebooks


@pytest.mark.parametrize(("books", "size"), [(4, 256), (3, 16), (5, 8), (2, 2)])
def test_tables_reconstruction_and_faiss_agree(books: int, size: int) -> None:
    rng = np.random.default_rng(books * size)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=size, sub_dim=6)
    codes = rng.integers(0, size, (80, books)).astype(np.uint8)
    queries = rng.standard_normal((5, books * 6)).astype(np.float32)
    unit = normalise_sub_vectors(queries, books)
    by_tables = score_codes(codebooks.lookup_tables(queries), codes)
    by_reconstruction = unit @ codebooks.decode(codes).T
    np.testing.assert_allclose(by_tables, by_reconstruction, atol=1e-5)

    index = to_faiss(codebooks, codes)
    assert index.ntotal == 80
    np.testing.assert_allclose(index.reconstruct_n(0, 80), codebooks.decode(codes), atol=1e-7)
    scores, ids = index.search(unit, 80)
    rows = np.arange(5)[:, None]
    np.testing.assert_allclose(scores, by_tables[rows, ids], atol=1e-5)
    found = CodeIndex(codebooks, codes).search(queries, 10)
    np.testing.assert_allclose(found.scores, scores[:, :10], atol=1e-5)


def test_faiss_encodes_as_we_do_when_codewords_are_unit() -> None:
    # For codewords of one length the nearest is the one of largest inner product.
    rng = np.random.default_rng(5)
    codebooks = random_codebooks(rng, num_codebooks=4, codebook_size=32, sub_dim=8)
    vectors = rng.standard_normal((60, 32)).astype(np.float32)
    index = to_faiss(codebooks, codebooks.encode(vectors))
    packed = index.pq.compute_codes(normalise_sub_vectors(vectors, 4))
    import faiss

    stored = faiss.vector_to_array(index.codes).reshape(60, -1)
    np.testing.assert_array_equal(packed, stored)


@pytest.mark.parametrize(("rows", "size"), [(300, 16), (300, 256), (17, 16), (16, 16), (3, 16)])
def test_fitted_codes_are_the_nearest_centroids(
    rows: int, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    data = np.random.default_rng(0).standard_normal((rows, 12)).astype(np.float32)
    centroids, codes = fit_pq(data, 3, codebook_size=size, seed=1)
    assert centroids.shape == (3, size, 4)
    for row in range(0, rows, 7):
        for m in range(3):
            part = data[row, 4 * m : 4 * m + 4]
            distances = [float(np.square(part - word).sum()) for word in centroids[m]]
            assert distances[codes[row, m]] == pytest.approx(min(distances), abs=1e-6)
            if rows <= size:  # every row is a codeword
                assert min(distances) == pytest.approx(0, abs=1e-9)
    again, _ = fit_pq(data, 3, codebook_size=size, seed=1)
    np.testing.assert_array_equal(again, centroids)
    assert capfd.readouterr() == ("", "")  # faiss warns about few points unless told not to


def test_what_cannot_be_fitted_is_refused() -> None:
    data = np.zeros((20, 12), dtype=np.float32)
    with pytest.raises(ShapeError, match="codebook_size=12 is not allowed"):
        fit_pq(data, 3, codebook_size=12, seed=0)
    with pytest.raises(ShapeError, match="5 codebooks divide"):
        fit_pq(data, 5, codebook_size=16, seed=0)
    with pytest.raises(ShapeError, match="at least one row"):
        fit_pq(data[:0], 3, codebook_size=16, seed=0)
