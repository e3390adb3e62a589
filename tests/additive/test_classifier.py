"""Scores of classes by the codes of a model, against plain loops over images and codewords."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.additive import CodeClassifier, code_prototypes, count_codewords
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm

BOOKS, SIZE, WIDTH, CLASSES, ROWS = 3, 4, 2, 5, 60
NAMES = tuple(f"kind {number}" for number in range(CLASSES))


def codebooks() -> Codebooks:
    words = np.random.default_rng(0).normal(size=(BOOKS, SIZE, WIDTH))
    return Codebooks((words / np.linalg.norm(words, axis=2, keepdims=True)).astype(np.float32))


def gallery(seed: int = 1) -> tuple[CodeArray, IntArray]:
    """Return codes and classes of images, some of none; the last class has a single image."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, SIZE, (ROWS, BOOKS)).astype(np.uint8)
    classes = generator.integers(-1, CLASSES - 1, ROWS)
    classes[7] = CLASSES - 1
    return codes, classes


def plain_scores(
    codes: CodeArray, classes: IntArray, queries: FloatArray, norm: QueryNorm
) -> list[list[float]]:
    """Score every class by loops: the mean of its images, at length one, with the query."""
    words = codebooks().codewords.astype(np.float64)
    means = []
    for number in range(CLASSES):
        total, images = [0.0] * (BOOKS * WIDTH), 0
        for code, of in zip(codes.tolist(), classes.tolist(), strict=True):
            if of == number:
                images += 1
                for book, word in enumerate(code):
                    for place in range(WIDTH):
                        total[book * WIDTH + place] += float(words[book, word, place])
        length = sum((value / images) ** 2 for value in total) ** 0.5
        means.append([value / images / length for value in total])
    scores = []
    for query in queries.astype(np.float64):
        asked: list[float] = []
        for book in range(BOOKS):
            part = query[book * WIDTH : (book + 1) * WIDTH]
            asked += (part / np.linalg.norm(part) if norm == "unit" else part).tolist()
        scores.append([sum(a * b for a, b in zip(asked, mean, strict=True)) for mean in means])
    return scores


@pytest.mark.parametrize("norm", ["unit", "raw"])
def test_scores_are_those_of_loops(norm: QueryNorm) -> None:
    codes, classes = gallery()
    queries = np.random.default_rng(2).normal(size=(4, BOOKS * WIDTH)).astype(np.float32)
    kinds = CodeClassifier.from_codes(codebooks(), codes, classes, NAMES, norm=norm)
    expected = plain_scores(codes, classes, queries, norm)
    assert kinds.class_scores(queries) == pytest.approx(np.array(expected), abs=1e-5)
    assert kinds.class_names == NAMES


def test_codewords_are_counted() -> None:
    codes, classes = gallery()
    counted = count_codewords(codes, classes, SIZE)
    for book, (keys, images) in enumerate(counted):
        found = dict(zip(keys.tolist(), images.tolist(), strict=True))
        for number in range(CLASSES):
            for word in range(SIZE):
                there = int(((classes == number) & (codes[:, book] == word)).sum())
                assert found.get(number * SIZE + word, 0) == there


def test_parts_add_up_to_the_same_bits() -> None:
    books, (codes, classes) = codebooks(), gallery()
    whole = CodeClassifier.from_codes(books, codes, classes, NAMES).prototypes
    parts = []
    for start, end in ((0, 7), (7, 8), (8, ROWS)):
        there = np.unique(classes[start:end][classes[start:end] >= 0])
        own = np.where(classes[start:end] < 0, -1, np.searchsorted(there, classes[start:end]))
        parts.append((there, count_codewords(codes[start:end], own, SIZE)))
    assert np.array_equal(code_prototypes(books, parts, CLASSES), whole)


def test_no_images_are_no_kinds() -> None:
    nothing = np.empty((0, BOOKS), np.uint8)
    kinds = CodeClassifier.from_codes(codebooks(), nothing, np.empty(0, np.int64), ())
    assert isinstance(kinds, CodeClassifier)
    assert kinds.class_scores(np.ones((2, BOOKS * WIDTH), np.float32)).shape == (2, 0)
