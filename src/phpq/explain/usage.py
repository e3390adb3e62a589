"""What codebooks are used for: images per codeword in, figures of a codebook's use out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phpq.codes import IntArray


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
