"""Finds codes whose sum of codewords is near a target, several partial codes at a time. Numpy."""

from __future__ import annotations

import numpy as np

from phpq.codes import CodeArray, FloatArray

BEAM = 8  # partial codes that are followed while a row is encoded
_BLOCK = 512  # targets looked at at once
_NEAR = 16  # codes that a class may take, the nearest free one


def beam_search(
    products: FloatArray,
    gram: FloatArray,
    *,
    fixed: CodeArray | None = None,
    spare: int = 0,
    width: int = BEAM,
    keep: int = 1,
) -> CodeArray:
    """Find codes whose sum of codewords is near a target, one codebook after the other.

    Takes the inner products (n, M, K) of targets and codewords, and those of codewords with each
    other, (M, K, M, K). `fixed` (n, P) gives the first indices; the last `spare` codewords of the
    first book are not used. Returns the best codes (n, M) uint8; with `keep` > 1 that many of each
    target, best first, (n, keep, M). Only comparisons and sums of single rows: a row's code does
    not depend on the rows beside it.
    """
    count, books, size = products.shape
    given = np.empty((count, 0), np.uint8) if fixed is None else fixed
    codes = given[:, None, :].astype(np.int64)  # (n, beams, books so far)
    costs = np.zeros((count, 1), np.float32)  # squared distance, but for the target's own length
    squares = np.einsum("mkmk->mk", gram)
    for book in range(given.shape[1], books):
        added = (squares[book] - 2 * products[:, book])[:, None, :] + costs[:, :, None]
        for before in range(book):
            added = added + 2 * gram[before, codes[:, :, before], book]
        if book == 0 and spare:
            added[:, :, size - spare :] = np.inf
        flat = added.reshape(count, -1)
        kept = min(width, flat.shape[1])
        best = np.argpartition(flat, kept - 1, axis=1)[:, :kept]
        values = np.take_along_axis(flat, best, axis=1)
        order = np.lexsort((best, values), axis=1)
        best, costs = (np.take_along_axis(each, order, axis=1) for each in (best, values))
        beams = np.take_along_axis(codes, (best // size)[:, :, None], axis=1)
        codes = np.concatenate([beams, (best % size)[:, :, None]], axis=2)
    found = codes.astype(np.uint8)
    return found[:, 0] if keep == 1 else found[:, :keep]


def gram_matrix(codewords: FloatArray) -> FloatArray:
    """Return the inner products of all codewords (M, K, d) with each other: (M, K, M, K)."""
    books, size, dim = codewords.shape
    flat = codewords.reshape(-1, dim).astype(np.float64)
    return (flat @ flat.T).astype(np.float32).reshape(books, size, books, size)


def nearest_codes(targets: FloatArray, codewords: FloatArray) -> list[list[tuple[int, ...]]]:
    """Return codes of (P, K, d) codewords near each of (n, d) targets, the nearest first."""
    books, size, dim = codewords.shape
    flat, gram = codewords.reshape(-1, dim).astype(np.float64), gram_matrix(codewords)
    found: list[list[tuple[int, ...]]] = []
    for start in range(0, len(targets), _BLOCK):
        part = targets[start : start + _BLOCK].astype(np.float64)
        products = (part @ flat.T).astype(np.float32).reshape(len(part), books, size)
        near = beam_search(products, gram, width=_NEAR, keep=_NEAR)
        found += [[tuple(code) for code in codes] for codes in near.tolist()]
    return found
