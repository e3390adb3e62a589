"""What codes tell: the share of each codebook in a match, codewords in use, a map of a gallery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    QueryNorm,
    check_codes,
    group_codes,
)
from phpq.errors import ConfigError, ShapeError
from phpq.evaluation.metrics import entropy_bits

Doubles = NDArray[np.float64]


def codebook_shares(
    codebooks: Codebooks,
    query_embedding: FloatArray,
    code: CodeArray,
    *,
    query_norm: QueryNorm = "unit",
) -> FloatArray:
    """Split the score of one query (D,) and one gallery image, its code (M,), by codebook.

    A query that is known by its code only is what the code decodes to, as `Gallery.search_id` does
    it. Returns (M,) float32, negative where a codebook speaks against the match. They add up to the
    score of the index; not to that of a re-ranked hit, which float embeddings score.
    """
    if not isinstance(query_embedding, np.ndarray) or query_embedding.ndim != 1:
        raise ShapeError(
            f"query_embedding has shape {np.shape(query_embedding)}; expected "
            f"({codebooks.embedding_dim},). Explain one query at a time."
        )
    chosen = check_code(codebooks, code)
    tables = codebooks.lookup_tables(query_embedding[None], norm=query_norm)
    shares: FloatArray = tables[0, np.arange(codebooks.num_codebooks), chosen]
    return shares


def signed_parts(shares: FloatArray) -> FloatArray:
    """Scale (M,) shares so that their sizes add up to 1: float32, signs stay, zeros stay zeros."""
    sizes = float(np.abs(shares).sum(dtype=np.float64))
    return (np.asarray(shares, np.float64) / (sizes or 1.0)).astype(np.float32)


def check_code(codebooks: Codebooks, code: CodeArray) -> CodeArray:
    """Return `code`, or raise a `ShapeError` unless it is one (M,) uint8 code of the codebooks."""
    if not isinstance(code, np.ndarray) or code.ndim != 1:
        raise ShapeError(
            f"code has shape {np.shape(code)}; expected ({codebooks.num_codebooks},): "
            "the code of one image."
        )
    check_codes("code", code[None], codebooks.num_codebooks, codebooks.codebook_size)
    return code


@dataclass(frozen=True, slots=True, eq=False)
class CodebookUsage:
    """How a gallery uses one codebook."""

    codebook: int  # from 0
    images: IntArray  # (K,) how many images have each codeword

    @property
    def used(self) -> int:
        """Codewords that an image has."""
        return int(np.count_nonzero(self.images))

    @property
    def dead(self) -> int:
        """Codewords that no image has."""
        return len(self.images) - self.used

    @property
    def entropy_bits(self) -> float:
        """Entropy of the codewords, at most log2 K bits; 0 for an empty gallery."""
        return entropy_bits(self.images)

    def top_words(self, limit: int) -> IntArray:
        """Return the used codewords, most used first and equal ones in order, `limit` at most."""
        order = np.argsort(-self.images, kind="stable")[: self.used]
        return order[: max(0, limit)].astype(np.int64)

    def to_dict(self, *, limit: int = 256) -> dict[str, Any]:
        """Return plain data for JSON, with the `limit` most used codewords."""
        words = self.top_words(limit)
        return {
            "codebook": self.codebook,
            "used": self.used,
            "dead": self.dead,
            "entropy_bits": round(self.entropy_bits, 4),
            "words": [{"word": int(word), "images": int(self.images[word])} for word in words],
        }


def sample_rows(count: int, *, limit: int, seed: int = 0) -> IntArray:
    """Choose at most `limit` of `count` rows at random, without repeats: int64, ascending."""
    if limit < 1:
        raise ConfigError(f"limit={limit!r} is not allowed: it must be at least 1.")
    if count <= limit:
        return np.arange(count, dtype=np.int64)
    chosen = np.random.default_rng(seed).choice(count, size=limit, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)


def project_codes(codebooks: Codebooks, codes: CodeArray) -> FloatArray:
    """Project (n, M) codes on the two directions in which what they decode to varies most (PCA).

    Returns (n, 2) float32 in [-1, 1], centred, both axes in one scale; equal codes have equal
    points. Memory is 4 D bytes for each distinct code.
    """
    groups = group_codes(codes)
    if not len(codes):
        return np.zeros((0, 2), np.float32)
    vectors = codebooks.decode(groups.codes).astype(np.float64)  # (g, D)
    weights = groups.sizes / len(codes)
    vectors -= weights @ vectors
    # The left singular vectors of the weighted rows, from the smaller of the two products.
    scaled = vectors * np.sqrt(weights)[:, None]
    if len(scaled) <= scaled.shape[1]:
        values, left = _two_largest(scaled @ scaled.T)
        axes = scaled.T @ (left / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny)))
    else:
        values, axes = _two_largest(scaled.T @ scaled)
    points = vectors @ np.where(values > 1e-12, axes, 0.0)  # no direction at all: all in one point
    # An axis has no sign of its own: let the farther end be on the positive side.
    farthest = np.abs(points).argmax(axis=0)
    points *= np.where(points[farthest, [0, 1]] < 0, -1.0, 1.0)
    points /= max(float(np.abs(points).max()), np.finfo(np.float64).tiny)
    return points.astype(np.float32)[groups.group_of_row]


def _two_largest(matrix: Doubles) -> tuple[Doubles, Doubles]:
    """Return the 2 largest eigenvalues of a symmetric (n, n), largest first, and (n, 2) vectors."""
    size = len(matrix)
    if size == 1:
        return np.array([matrix[0, 0], 0.0]), np.array([[1.0, 0.0]])
    values, vectors = np.linalg.eigh(matrix)  # all of them, ascending
    return values[:-3:-1], vectors[:, :-3:-1]
