"""Finds codes whose sum of codewords is near a target, several partial codes at a time.

Importing this module does not load numba; the first search of more than a few rows does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.compiling import compiled

BEAM = 8  # partial codes that are followed while a row is encoded
_BLOCK = 512  # targets looked at at once
_FEW = 16  # targets that are followed without the compiler, unless it is loaded already
_NEAR = 16  # codes that a class may take, the nearest free one


def beam_search(
    products: FloatArray,
    gram: FloatArray,
    *,
    fixed: CodeArray | None = None,
    spare: Sequence[int] = (),
    width: int = BEAM,
    keep: int = 1,
) -> CodeArray:
    """Find codes whose sum of codewords is near a target, one codebook after the other.

    Takes the inner products (n, M, K) of targets and codewords, and those of codewords with each
    other, (M, K, M, K). `fixed` (n, P) gives the first indices; `spare` says how many
    codewords at the end of each book are not used. Returns the best codes (n, M) uint8; with
    `keep` > 1 that many of each target, best first, (n, keep, M). Only comparisons and
    sums of single rows: a row's code does not depend on the rows beside it. Of partial codes at one
    distance the first is followed.
    """
    count, books, _ = products.shape
    given = np.empty((count, 0), np.uint8) if fixed is None else np.ascontiguousarray(fixed)
    words = np.full(books, gram.shape[1])
    words[: len(spare)] -= np.asarray(spare, np.int64)
    found = np.zeros((count, width, books), np.uint8)
    loaded = _compiled.cache_info().currsize > 0
    follow = _compiled() if loaded or count > _FEW else _follow_plainly
    follow(products, gram, np.einsum("mkmk->mk", gram).copy(), given, words, found)
    return found[:, 0] if keep == 1 else found[:, :keep]


@cache
def _compiled() -> Callable[..., Any]:
    return compiled(_follow)


def _follow(  # noqa: C901
    products: FloatArray,
    gram: FloatArray,
    squares: FloatArray,
    given: CodeArray,
    allowed: IntArray,
    found: CodeArray,
) -> None:
    """Fill (n, width, M) with the codes of each target, best first; compiled by numba."""
    count, books, size = products.shape
    width, first = found.shape[1], given.shape[1]
    costs = np.empty(width, np.float32)  # squared distance, but for the target's own length
    before = np.empty((width, books), np.uint8)
    best, places = np.empty(width, np.float32), np.empty(width, np.int64)
    added = np.empty(size, np.float32)
    for row in range(count):
        codes = found[row]
        codes[0, :first] = given[row]
        costs[0] = 0
        beams = 1
        for book in range(first, books):
            words = allowed[book]
            kept = 0
            for beam in range(beams):
                for word in range(words):
                    added[word] = squares[book, word] - 2 * products[row, book, word] + costs[beam]
                for other in range(book):
                    entries = gram[other, codes[beam, other], book]
                    for word in range(words):
                        added[word] += 2 * entries[word]
                for word in range(words):
                    if kept == width and added[word] >= best[kept - 1]:
                        continue
                    place = kept if kept < width else width - 1
                    kept = min(kept + 1, width)
                    while place > 0 and best[place - 1] > added[word]:
                        best[place], places[place] = best[place - 1], places[place - 1]
                        place -= 1
                    best[place], places[place] = added[word], beam * size + word
            before[:beams] = codes[:beams]
            for beam in range(kept):
                codes[beam, :book] = before[places[beam] // size, :book]
                codes[beam, book] = places[beam] % size
                costs[beam] = best[beam]
            beams = kept


def _follow_plainly(
    products: FloatArray,
    gram: FloatArray,
    squares: FloatArray,
    given: CodeArray,
    allowed: IntArray,
    found: CodeArray,
) -> None:
    """Do as `_follow` in numpy, bit for bit: sums in float64, each rounded to float32."""
    _, books, size = products.shape
    width, first = found.shape[1], given.shape[1]
    for row, codes in enumerate(found):
        codes[0, :first] = given[row]
        costs, beams = np.zeros(1, np.float32), 1
        for book in range(first, books):
            words = allowed[book]
            twice = 2 * products[row, book].astype(np.float64)
            added = (squares[book] - twice + costs[:, None]).astype(np.float32)
            for other in range(book):
                entries = gram[other, codes[:beams, other], book].astype(np.float64)
                added = (added + 2 * entries).astype(np.float32)
            added[:, words:] = np.inf
            kept = min(width, beams * words)
            places = np.argsort(added.ravel(), kind="stable")[:kept]
            codes[:kept, :book] = codes[places // size, :book]
            codes[:kept, book] = places % size
            costs, beams = added.ravel()[places], kept


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
