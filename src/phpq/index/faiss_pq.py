"""Learned codes for faiss: codebooks and codes in, a ready `faiss.IndexPQ` out."""

from __future__ import annotations

from typing import Any

import numpy as np

from phpq.codes import CodeArray, Codebooks, check_codes, pack_codes


def to_faiss(codebooks: Codebooks, codes: CodeArray) -> Any:
    """Copy codewords and codes into a `faiss.IndexPQ` with the inner product.

    faiss does not normalise a query: pass `normalise_sub_vectors(queries, M)` to its `search` to
    get the scores of `FlatIndex`.

    Args:
        codebooks: M codebooks of K codewords.
        codes: (N, M) uint8.

    Returns:
        A trained `faiss.IndexPQ` of N rows.
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
