"""Beams find the nearest sums of codewords, and keep what is given."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from phpq.additive import _beam
from phpq.additive._beam import beam_search, gram_matrix
from phpq.codes import FloatArray


def test_a_wide_beam_finds_the_nearest_sum_of_codewords() -> None:
    rng = np.random.default_rng(1)
    words = rng.normal(size=(3, 4, 5)).astype(np.float32)
    targets = rng.normal(size=(6, 5)).astype(np.float32)
    products = np.einsum("nd,mkd->nmk", targets, words).astype(np.float32)
    codes = beam_search(products, gram_matrix(words), width=64)
    for target, code in zip(targets, codes, strict=True):
        every = list(itertools.product(range(4), repeat=3))
        errors = [sum((target - sum(words[m, k] for m, k in enumerate(one))) ** 2) for one in every]
        assert tuple(code) == every[int(np.argmin(errors))]


def test_a_beam_keeps_what_is_given_and_leaves_spare_codewords_alone() -> None:
    rng = np.random.default_rng(2)
    words = rng.normal(size=(3, 4, 5)).astype(np.float32)
    products = np.einsum("nd,mkd->nmk", rng.normal(size=(50, 5)), words).astype(np.float32)
    gram = gram_matrix(words)
    given = np.full((50, 1), 3, np.uint8)
    assert (beam_search(products, gram, fixed=given)[:, 0] == 3).all()
    assert (beam_search(products, gram)[:, 0] == 3).any()
    codes = beam_search(products, gram, spare=(1, 0, 2))
    assert (codes.max(axis=0) == (2, 3, 1)).all()


def test_a_narrow_beam_follows_the_nearest_partial_sums() -> None:
    rng = np.random.default_rng(3)
    words = rng.normal(size=(4, 6, 5)).astype(np.float32)
    targets = rng.normal(size=(20, 5)).astype(np.float32)
    given = rng.integers(0, 6, (20, 1)).astype(np.uint8)
    products = np.einsum("nd,mkd->nmk", targets, words).astype(np.float32)

    def followed(
        target: FloatArray, start: tuple[int, ...], spare: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        def error(code: tuple[int, ...]) -> float:
            total = sum(words[book, word] for book, word in enumerate(code))
            return float(np.square(target - total).sum())

        beams = [start]
        for book in range(len(start), 4):
            allowed = range(6 - spare[book])
            beams = sorted(((*code, word) for code in beams for word in allowed), key=error)[:3]
        return beams

    gram = gram_matrix(words)
    free = beam_search(products, gram, spare=(2, 0, 3, 1), width=3, keep=3)
    tied = beam_search(products, gram, fixed=given, width=3)
    for row, target in enumerate(targets):
        assert [tuple(code) for code in free[row].tolist()] == followed(target, (), (2, 0, 3, 1))
        start = tuple(given[row].tolist())
        assert tuple(tied[row].tolist()) == followed(target, start, (0, 0, 0, 0))[0]


@pytest.mark.parametrize("ties", [False, True])
def test_few_rows_get_the_codes_of_the_compiled_loop(ties: bool) -> None:
    rng = np.random.default_rng(4)
    for width, first, spare in ((1, 0, 0), (3, 1, 0), (8, 0, 2), (8, 2, 0), (40, 0, 1)):
        allowed = np.array([6 - spare, 6, 6 - 2 * spare, 6, 5])
        words = rng.normal(size=(5, 6, 4)).astype(np.float32)
        products = rng.normal(size=(30, 5, 6)).astype(np.float32)
        if ties:
            words, products = np.round(words), np.round(products)
        gram = gram_matrix(words)
        given = rng.integers(0, 6, (30, first)).astype(np.uint8)
        asked = (products, gram, np.einsum("mkmk->mk", gram).copy(), given, allowed)
        found = [np.zeros((30, width, 5), np.uint8) for _ in range(2)]
        _beam._search_plainly(*asked, found[0])
        _beam._compiled()(*asked, found[1])
        np.testing.assert_array_equal(found[0], found[1])


def test_few_rows_need_no_compiler() -> None:
    code = """
import sys
sys.modules["numba"] = None  # to import it is an error
import numpy as np
from phpq.additive._beam import beam_search, gram_matrix
words = np.eye(4, dtype=np.float32).reshape(2, 2, 4)
products = np.array([[[0, 1], [1, 0]]], np.float32)
assert beam_search(products, gram_matrix(words)).tolist() == [[1, 0]]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
