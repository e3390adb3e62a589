"""Our codes inside faiss give our scores: by tables, by reconstruction, and by IndexPQ."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.codes import normalise_sub_vectors, score_codes
from phpq.index import FlatIndex, to_faiss
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
