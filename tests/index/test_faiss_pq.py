"""Our codes inside faiss give our scores: by tables, by reconstruction, and by IndexPQ."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import normalise_sub_vectors, score_codes
from phpq.errors import FormatError, ShapeError
from phpq.index import CodeIndex, FlatIndex, fit_pq, from_faiss, to_faiss
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
    found = FlatIndex(codebooks, codes).search(queries, 10)
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


@pytest.mark.parametrize(("books", "size"), [(4, 256), (3, 16), (2, 2)])
def test_there_and_back_changes_nothing(books: int, size: int) -> None:
    rng = np.random.default_rng(books)
    codebooks = random_codebooks(rng, num_codebooks=books, codebook_size=size)
    codes = rng.integers(0, size, (300, books)).astype(np.uint8)
    back = from_faiss(to_faiss(codebooks, codes))
    assert back.codebooks.fingerprint() == codebooks.fingerprint()
    np.testing.assert_array_equal(back.codes(), codes)
    queries = rng.standard_normal((4, codebooks.embedding_dim)).astype(np.float32)
    scores, _ = to_faiss(codebooks, codes).search(queries, 20)
    np.testing.assert_allclose(back.search(queries, 20, query_norm="raw").scores, scores, atol=1e-5)


def test_rows_that_were_removed_stay_away_and_the_others_keep_their_numbers() -> None:
    rng = np.random.default_rng(6)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=256)
    index = CodeIndex(codebooks, rng.integers(0, 256, (200, 3)).astype(np.uint8))
    index.remove(np.arange(0, 200, 2))
    rows = index.live_rows()
    partner = to_faiss(codebooks, index.codes()[rows], ids=rows)
    queries = normalise_sub_vectors(rng.standard_normal((4, 12)).astype(np.float32), 3)
    scores, ids = partner.search(queries, 10)
    found = index.search(queries, 10)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_array_equal(np.sort(found.ids), np.sort(ids))
    assert (ids % 2 == 1).all()
    with pytest.raises(ShapeError, match=r"ids is an array of shape \(3,\)"):
        to_faiss(codebooks, index.codes(), ids=np.arange(3))
    with pytest.raises(FormatError, match=r"is a 'IndexIDMap2'.*Pass its `index.index`"):
        from_faiss(partner)
    assert len(from_faiss(partner.index)) == 100


def test_other_faiss_indexes_are_refused_with_advice() -> None:
    import faiss

    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    product = faiss.IndexPQ(8, 2, 4, faiss.METRIC_INNER_PRODUCT)
    with pytest.raises(FormatError, match="is_trained=False"):
        from_faiss(product)
    product.train(vectors)
    with pytest.raises(FormatError, match=r"codewords of length .* expected unit length"):
        from_faiss(product)
    with pytest.raises(FormatError, match="metric_type=1"):
        from_faiss(faiss.IndexPQ(8, 2, 4))
    with pytest.raises(FormatError, match="is a 'IndexFlatIP'; expected a 'IndexPQ'"):
        from_faiss(faiss.IndexFlatIP(8))
    with pytest.raises(FormatError, match="is a 'int'"):
        from_faiss(3)


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
