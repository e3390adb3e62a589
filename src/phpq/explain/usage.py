"""What codebooks are used for: codes in, images a codeword and the images behind one out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phpq.codes import CodeArray, IntArray, check_codes
from phpq.errors import ConfigError, ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class CodebookUsage:
    """How a gallery uses one codebook.

    Attributes:
        codebook: From 0.
        images: (K,) int64, how many images have each codeword.
    """

    codebook: int
    images: IntArray

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
        counts = self.images[self.images > 0]
        shares = counts / max(1, int(counts.sum()))
        return abs(float(-(shares * np.log2(shares)).sum()))  # no -0.0

    def top_words(self, limit: int) -> IntArray:
        """Return the used codewords, most used first and equal ones in order, `limit` at most."""
        order = np.argsort(-self.images, kind="stable")[: self.used]
        return order[: max(0, limit)].astype(np.int64)

    def to_dict(self, *, limit: int = 256) -> dict[str, Any]:
        """Return plain data for JSON, with the `limit` most used codewords."""
        words = [
            {"word": int(word), "images": int(self.images[word])} for word in self.top_words(limit)
        ]
        return {
            "codebook": self.codebook,
            "used": self.used,
            "dead": self.dead,
            "entropy_bits": round(self.entropy_bits, 4),
            "words": words,
        }


@dataclass(frozen=True, slots=True, eq=False)
class CodewordImages:
    """Images that share a codeword.

    Attributes:
        rows: (n,) int64, ascending rows of the codes.
        total: How many images have the codeword; more than n where the limit is reached.
    """

    rows: IntArray
    total: int


def codebook_usage(codes: CodeArray, codebook_size: int) -> tuple[CodebookUsage, ...]:
    """Count the images of every codeword.

    Args:
        codes: (N, M) uint8.
        codebook_size: K.

    Returns:
        One for each of the M codebooks.
    """
    check_codes("codes", codes, codebook_size=codebook_size)
    return tuple(
        CodebookUsage(book, np.bincount(codes[:, book], minlength=codebook_size).astype(np.int64))
        for book in range(codes.shape[1])
    )


def images_of_codeword(
    codes: CodeArray, codebook: int, word: int, *, codebook_size: int = 256, limit: int = 60
) -> CodewordImages:
    """Find the images behind one codeword.

    Args:
        codes: (N, M) uint8.
        codebook: From 0.
        word: From 0.
        codebook_size: K.
        limit: Most rows, at least 1. Of more they are taken at equal steps: galleries are filled
            class by class, and the first ones would all be of one class.
    """
    check_codes("codes", codes, codebook_size=codebook_size)
    if not 0 <= codebook < codes.shape[1]:
        raise ShapeError(f"codebook={codebook!r} is not there; expected 0 to {codes.shape[1] - 1}.")
    if not 0 <= word < codebook_size:
        raise ShapeError(f"word={word!r} is not there; expected 0 to {codebook_size - 1}.")
    if limit < 1:
        raise ConfigError(f"limit={limit!r} is not allowed: it must be at least 1.")
    rows = np.flatnonzero(codes[:, codebook] == word).astype(np.int64)
    chosen = np.arange(min(limit, len(rows))) * len(rows) // max(1, min(limit, len(rows)))
    return CodewordImages(rows=rows[chosen], total=len(rows))
