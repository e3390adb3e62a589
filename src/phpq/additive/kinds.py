"""Kinds by the codes of a model: codes and labels of a gallery in, scores of its classes out.

The score of a class is the inner product of the query with the mean of what the codes of its images
stand for, at one length for all classes: a class is not likelier because its images are alike. That
mean is made of counts, how many images of a class have a codeword. They are whole numbers, so that
parts of a gallery add up to what one process would have counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from phpq.additive.chances import Calibration, Chances
from phpq.additive.codebooks import unit_rows
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm

# Of each codebook: class * K + codeword, ascending, and how many images have both.
WordCounts = list[tuple[IntArray, IntArray]]


@dataclass(frozen=True, slots=True, eq=False)
class CodeKinds:
    """Classes of a gallery whose codes are made with the codebooks of its model."""

    books: Codebooks
    norm: QueryNorm  # how queries are scored, see `Codebooks.lookup_tables`
    class_names: tuple[str, ...]
    prototypes: FloatArray  # (C, D), see `code_prototypes`
    sharpness: float = 1.0
    chances: Chances | None = None
    parents: Mapping[str, str] = field(default_factory=dict)

    def kinds(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C) float32, higher is better."""
        scores: FloatArray = self.books.vectors(queries, norm=self.norm) @ self.prototypes.T
        return scores

    @property
    def said(self) -> Calibration:
        """What was fitted to scores such as theirs, to be kept."""
        chances, parents = self.chances, self.parents
        return Calibration(sharpness=self.sharpness, chances=chances, parents=parents)

    def told_by(self, said: Calibration) -> CodeKinds:
        """Return the same classes with what was fitted to scores such as theirs."""
        chances, parents = said.chances, said.parents
        return replace(self, sharpness=said.sharpness, chances=chances, parents=parents)


def count_words(codes: CodeArray, classes: IntArray, codebook_size: int) -> WordCounts:
    """Count the codewords (N, M) of the images of each class (N,); -1 is no class."""
    inside = classes >= 0
    first = classes[inside].astype(np.int64) * codebook_size
    found = []
    for column in codes[inside].T:
        counts = np.bincount(first + column)
        keys = np.flatnonzero(counts)
        found.append((keys, counts[keys]))
    return found


def code_prototypes(
    books: Codebooks, parts: Sequence[tuple[IntArray, WordCounts]], count: int
) -> FloatArray:
    """Return (C, D) float32: the means of what the codes of `count` classes stand for, of length 1.

    A part is some of the images: the places (c,) of its classes among all, and its counts.
    """
    size, width = books.codebook_size, books.sub_dim
    means = np.zeros((count, books.embedding_dim), np.float32)
    for book in range(books.num_codebooks):
        table = np.zeros((count, size))
        for places, counts in parts:
            keys, images = counts[book]
            table[places[keys // size], keys % size] += images
        table /= np.maximum(table.sum(axis=1, keepdims=True), 1)
        means[:, book * width : (book + 1) * width] = table @ books.codewords[book]
    return unit_rows(means)


def code_kinds(
    books: Codebooks,
    codes: CodeArray,
    classes: IntArray,
    class_names: tuple[str, ...],
    *,
    norm: QueryNorm = "unit",
) -> CodeKinds:
    """Return the classes of images with codes (N, M) and classes (N,), -1 for none."""
    counts = count_words(codes, classes, books.codebook_size)
    places = np.arange(len(class_names))
    means = code_prototypes(books, [(places, counts)], len(class_names))
    return CodeKinds(books, norm, class_names, means)
