"""Learned codes to and from faiss (`IndexPQ` with inner product), and its product quantizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    check_codes,
    pack_codes,
    unpack_codes,
)
from phpq.errors import FormatError, ShapeError
from phpq.index.engine import CodeIndex

_UNIT_TOLERANCE = 1e-3  # that of `Codebooks`


def to_faiss(codebooks: Codebooks, codes: CodeArray, *, ids: IntArray | None = None) -> Any:
    """Copy codewords and codes into a `faiss.IndexPQ` with the inner product.

    faiss does not normalise a query: pass `normalise_sub_vectors(queries, M)` to its `search` to
    get the scores of our indexes. For a `CodeIndex` with removed rows, take
    `rows = index.live_rows()`, `codes=index.codes()[rows]` and `ids=rows`.

    Args:
        codebooks: M codebooks of K codewords.
        codes: (N, M) uint8.
        ids: (N,) int64, what faiss shall answer with in place of positions; None: positions.

    Returns:
        A trained `faiss.IndexPQ` of N rows, inside a `faiss.IndexIDMap2` where ids are given.
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
    if ids is None:
        packed = pack_codes(codes, codebooks.bits_per_index)
        faiss.copy_array_to_vector(np.ascontiguousarray(packed).ravel(), index.codes)
        index.ntotal = len(codes)
        return index
    ids = np.asarray(ids)
    if ids.shape != (len(codes),) or not np.issubdtype(ids.dtype, np.integer):
        raise ShapeError(
            f"ids is an array of shape {ids.shape} and dtype {str(ids.dtype)!r}; expected "
            f"({len(codes)},) integers, one for each code."
        )
    named = faiss.IndexIDMap2(index)
    packed = pack_codes(codes, codebooks.bits_per_index)
    named.add_sa_codes(np.ascontiguousarray(packed), ids.astype(np.int64))
    return named


def from_faiss(index: Any) -> CodeIndex:
    """Copy a `faiss.IndexPQ` with the inner product and codewords of unit length.

    Args:
        index: The faiss index; a row's number is its position there.

    Returns:
        The same rows; `search(queries, query_norm="raw")` gives the scores of faiss.
    """
    import faiss

    owner = index  # the downcast object only borrows its memory
    index = faiss.downcast_index(owner) if isinstance(owner, faiss.Index) else owner
    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        raise FormatError(
            f"index is a {type(index).__name__!r}; expected a 'IndexPQ'. Pass its `index.index`, "
            "and look the row numbers up in `faiss.vector_to_array(index.id_map)`."
        )
    if not isinstance(index, faiss.IndexPQ):
        raise FormatError(
            f"index is a {type(index).__name__!r}; expected a 'IndexPQ'. Other kinds hold other "
            "codes: encode the vectors with phpq codebooks instead."
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT or not index.is_trained:
        raise FormatError(
            f"index has metric_type={index.metric_type!r} and is_trained={index.is_trained!r}; "
            "expected METRIC_INNER_PRODUCT (0) and True. Train an index with the inner product."
        )
    books, bits = int(index.pq.M), int(index.pq.nbits)
    if not 1 <= bits <= 8:
        raise FormatError(
            f"index has {bits!r} bits for each sub-vector; expected 1 to 8. Train an index with "
            "nbits=8."
        )
    words = faiss.vector_to_array(index.pq.centroids).reshape(books, 1 << bits, -1)
    lengths = np.linalg.norm(words, axis=2)
    if np.abs(lengths - 1).max() > _UNIT_TOLERANCE:
        raise FormatError(
            f"index has codewords of length {lengths.min():.6g} to {lengths.max():.6g}; expected "
            f"unit length within {_UNIT_TOLERANCE:g}, without which the scores would change. Keep "
            "this index in faiss, or divide each codeword by its length, make a `Codebooks` of "
            "them, and encode the vectors again."
        )
    packed = faiss.vector_to_array(index.codes).reshape(owner.ntotal, -1)
    codes = unpack_codes(np.ascontiguousarray(packed), books, bits_per_index=bits)
    return CodeIndex(Codebooks(words), codes)


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
