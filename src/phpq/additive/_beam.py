"""Beam search for the codes whose sum of codewords is nearest to a target.

Importing this module does not load numba; the first search of more than a few rows does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.compiling import compiled

BEAM = 8  # width while a row is encoded
_BLOCK = 512  # targets per matrix product
_FEW = 16  # targets that are encoded in plain numpy, unless compiled code is loaded already
_NEAR = 16  # nearest codes among which a class finds a free one


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
    other, (M, K, M, K). `fixed` (n, P) gives the first indices; `spare` is the number of unused
    codewords at the end of each book. Returns the best codes (n, M) uint8; with `keep` > 1 that
    many per target, best first, (n, keep, M). A row's code does not depend on the rows beside it.
    Of partial codes at equal distance the first wins.
    """
    count, books, _ = products.shape
    given = np.empty((count, 0), np.uint8) if fixed is None else np.ascontiguousarray(fixed)
    words = np.full(books, gram.shape[1])
    words[: len(spare)] -= np.asarray(spare, np.int64)
    found = np.zeros((count, width, books), np.uint8)
    loaded = _compiled.cache_info().currsize > 0
    search = _compiled() if loaded or count > _FEW else _search_plainly
    search(products, gram, np.einsum("mkmk->mk", gram).copy(), given, words, found)
    return found[:, 0] if keep == 1 else found[:, :keep]


@cache
def _compiled() -> Callable[..., Any]:
    return compiled(_search)


def _search(  # noqa: C901
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
    costs = np.empty(width, np.float32)  # squared distance less the squared length of the target
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


def _search_plainly(
    products: FloatArray,
    gram: FloatArray,
    squares: FloatArray,
    given: CodeArray,
    allowed: IntArray,
    found: CodeArray,
) -> None:
    """Do as `_search` in numpy, bit for bit: sums in float64, each rounded to float32."""
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


def _nearest_codes(targets: FloatArray, codewords: FloatArray) -> list[list[tuple[int, ...]]]:
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


def free_codes(
    targets: FloatArray, codewords: FloatArray, taken: set[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return for each target (n, d) the nearest code that is not `taken` yet, and take it.

    Two classes of one code would be one class. If all codes nearby are taken, it is the nearest.
    """
    found: list[tuple[int, ...]] = []
    for near in _nearest_codes(targets, codewords):
        found.append(next((code for code in near if code not in taken), near[0]))
        taken.add(found[-1])
    return found
