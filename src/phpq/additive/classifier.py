"""A nearest-prototype classifier over a model's codes: codes and labels in, class scores out.

The score of a class is the inner product of the query with the mean of the decoded codes of its
images, scaled to unit length: a class must not win because its images are alike. The mean is made
of codeword counts per class. Counts are integers, so that those of shards add up to exactly what
one process would count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from phpq.additive.codebooks import unit_rows
from phpq.additive.probabilities import Calibration, ProbabilityModel
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm

# Per codebook: the keys class * K + codeword that occur, ascending, and how many images have each.
CodewordCounts = list[tuple[IntArray, IntArray]]


@dataclass(frozen=True, slots=True, eq=False)
class CodeClassifier:
    """Classes of a gallery whose codes are made with the codebooks of its model."""

    books: Codebooks
    norm: QueryNorm  # how queries are scored, see `Codebooks.lookup_tables`
    class_names: tuple[str, ...]
    prototypes: FloatArray  # (C, D), see `code_prototypes`
    sharpness: float = 1.0
    probabilities: ProbabilityModel | None = None
    parents: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_codes(
        cls,
        books: Codebooks,
        codes: CodeArray,
        classes: IntArray,
        class_names: tuple[str, ...],
        *,
        norm: QueryNorm = "unit",
    ) -> CodeClassifier:
        """Make a classifier of images with codes (N, M) and classes (N,), -1 for none."""
        counts = count_codewords(codes, classes, books.codebook_size)
        places = np.arange(len(class_names))
        means = code_prototypes(books, [(places, counts)], len(class_names))
        return cls(books, norm, class_names, means)

    def class_scores(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C) float32, higher is better."""
        scores: FloatArray = self.books.vectors(queries, norm=self.norm) @ self.prototypes.T
        return scores

    @property
    def calibration(self) -> Calibration:
        """How its scores become probabilities."""
        return Calibration(
            sharpness=self.sharpness, probabilities=self.probabilities, parents=self.parents
        )


def count_codewords(codes: CodeArray, classes: IntArray, codebook_size: int) -> CodewordCounts:
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
    books: Codebooks, parts: Sequence[tuple[IntArray, CodewordCounts]], count: int
) -> FloatArray:
    """Return (C, D) float32: the means of the decoded codes of `count` classes, of unit length.

    A part covers some of the images: the places (c,) of its classes among all, and its counts.
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
