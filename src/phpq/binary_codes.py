"""Binary codes as product codes: eight bits are one codebook of all 256 sign patterns.

The inner product of sign patterns is `bits - 2 * Hamming distance`, so that a hashing method is
stored, searched and measured by the same code as a quantizer. Sums of ones are exact in float32:
equal distances give equal scores, and ties stay ties.
"""

from __future__ import annotations

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, check_codes, check_embeddings
from phpq.errors import ShapeError

BITS_PER_BOOK = 8


def sign_codebooks(bits: int) -> Codebooks:
    """Return codebooks whose codes are packed signs: bit j of a byte is 1 for a positive sign.

    Codewords are (bits / 8, 256, 8) of -1 and +1. Search with `query_norm="raw"`.
    """
    if bits < BITS_PER_BOOK or bits % BITS_PER_BOOK:
        raise ShapeError(
            f"bits={bits!r} is not allowed for a binary code; use a multiple of {BITS_PER_BOOK}."
        )
    bytes_ = np.arange(256, dtype=np.uint8)[:, None]
    patterns = 2.0 * np.unpackbits(bytes_, axis=1, bitorder="little") - 1
    books = np.broadcast_to(patterns.astype(np.float32), (bits // BITS_PER_BOOK, 256, 8))
    return Codebooks(books, unit=False)


def pack_signs(values: FloatArray) -> CodeArray:
    """Pack the signs of (N, bits) floats into (N, bits / 8) uint8, as `sign_codebooks` does."""
    bits = check_embeddings("values", values) >= 0
    if bits.shape[1] % BITS_PER_BOOK:
        raise ShapeError(
            f"values has {bits.shape[1]} columns; expected a multiple of {BITS_PER_BOOK}."
        )
    return np.packbits(bits, axis=1, bitorder="little")


def hamming_distances(queries: CodeArray, gallery: CodeArray) -> IntArray:
    """Count differing bits of codes (Q, bytes) and (N, bytes): (Q, N) int64."""
    check_codes("queries", queries)
    check_codes("gallery", gallery, queries.shape[1])
    differing = np.bitwise_count(queries[:, None] ^ gallery[None])
    return np.asarray(differing.sum(axis=2, dtype=np.int64))
