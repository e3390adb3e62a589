"""Learned codes for faiss (`IndexPQ` with inner product), and its product quantizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, check_codes, pack_codes, unpack_codes
from phpq.errors import ShapeError


def to_faiss(codebooks: Codebooks, codes: CodeArray) -> Any:
    """Copy codewords and codes into a `faiss.IndexPQ` with the inner product.

    faiss does not normalise a query: pass `normalise_sub_vectors(queries, M)` to its `search` to
    get the scores of `CodeIndex`. Takes codes (N, M) uint8 and returns a trained index of N rows.
    """
    import faiss

    check_codes("codes", codes, codebooks.num_codebooks, codebooks.codebook_size)
    index = faiss.IndexPQ(
        codebooks.embedding_dim,
        codebooks.num_codebooks,
        codebooks.bits_per_index,
        faiss.METRIC_INNER_PRODUCT,
    )
    faiss.copy_array_to_vector(codebooks.codewords.ravel(), index.pq.centroids)
    index.is_trained = True
    packed = pack_codes(codes, codebooks.bits_per_index)
    faiss.copy_array_to_vector(np.ascontiguousarray(packed).ravel(), index.codes)
    index.ntotal = len(codes)
    return index


def fit_pq(
    rows: FloatArray, num_codebooks: int, *, codebook_size: int, seed: int
) -> tuple[FloatArray, CodeArray]:
    """Fit a product quantizer by k-means, without any normalisation.

    Args:
        rows: (N, D) float32, what the codewords shall be close to; one row is enough.
        num_codebooks: M, a divisor of D.
        codebook_size: K, a power of two up to 256.
        seed: Of the k-means.

    Returns:
        Centroids (M, K, d) float32 and the codes (N, M) uint8 of the rows.
    """
    import faiss

    if not 2 <= codebook_size <= 256 or codebook_size & (codebook_size - 1):
        raise ShapeError(
            f"codebook_size={codebook_size!r} is not allowed; use a power of two from 2 to 256."
        )
    if not len(rows) or rows.shape[1] % num_codebooks:
        raise ShapeError(
            f"The gallery has shape {rows.shape}; expected at least one row, and columns that "
            f"{num_codebooks} codebooks divide. Choose another number of codebooks."
        )
    dim = rows.shape[1] // num_codebooks
    bits = codebook_size.bit_length() - 1
    quantizer = faiss.ProductQuantizer(rows.shape[1], num_codebooks, bits)
    if len(rows) > codebook_size:
        quantizer.cp.seed = seed
        quantizer.cp.min_points_per_centroid = 1  # no warning: small galleries are our case
        quantizer.train(rows)
    else:
        # k-means is not defined; with a codeword for each row nothing is lost anyway.
        filled = rows[np.arange(codebook_size) % len(rows)]
        words = filled.reshape(codebook_size, num_codebooks, dim).transpose(1, 0, 2)
        faiss.copy_array_to_vector(np.ascontiguousarray(words).ravel(), quantizer.centroids)
    centroids = faiss.vector_to_array(quantizer.centroids)
    centroids = centroids.reshape(num_codebooks, codebook_size, dim)
    packed = quantizer.compute_codes(rows)
    return centroids, unpack_codes(packed, num_codebooks, bits_per_index=bits)
