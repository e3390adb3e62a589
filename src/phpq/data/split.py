"""Deterministic choices among images: ids in, a stable order or a train/test mask out.

An image's place depends on the hash of its id and the seed, never on its position, so a data set
that grows keeps its old order: a new image moves at most one old one across a border.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phpq.errors import DataError

TEST_SHARE = 0.2


def hash_order(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return (N,) int64, the positions of N unique ids in the order of their keyed hashes."""
    key = str(seed).encode()

    def digest(position: int) -> bytes:
        # A file name need not be valid UTF-8; Python then carries its bytes as surrogates.
        text = ids[position].encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, key=key, digest_size=16).digest()

    return np.array(sorted(range(len(ids)), key=digest), dtype=np.int64)


def draw_per_class(
    ids: Sequence[str], labels: NDArray[np.int64], counts: NDArray[np.int64], *, seed: int
) -> NDArray[np.bool_]:
    """Draw `counts[c]` images of each class c.

    Args:
        ids: N unique ids.
        labels: (N,) from 0 to C - 1.
        counts: (C,), how many to draw of each class.
        seed: Another seed draws others.

    Returns:
        (N,) bool, true for the images drawn.
    """
    drawn = np.zeros(len(ids), dtype=np.bool_)
    left = counts.copy()
    for position in hash_order(ids, seed):
        if left[labels[position]] > 0:
            drawn[position] = True
            left[labels[position]] -= 1
    return drawn


def test_mask(
    ids: Sequence[str], labels: NDArray[np.int64], class_names: Sequence[str], *, seed: int
) -> NDArray[np.bool_]:
    """Choose a fifth of each class, at least one image, as the test split: (N,) bool.

    Raises:
        DataError: If a class has one image only, which cannot be on both sides.
    """
    sizes = np.bincount(labels, minlength=len(class_names))
    lonely = [class_names[c] for c in np.flatnonzero(sizes == 1).tolist()]
    if lonely:
        raise DataError(
            f"No split was given, and {named(lonely, 'class')} with one image only cannot be split "
            "into train and test. Add images to them, remove them, or give a split yourself "
            "(folders train/ and test/, or a column 'split')."
        )
    counts = np.maximum(1, np.rint(sizes * TEST_SHARE)).astype(np.int64)
    return draw_per_class(ids, labels, counts, seed=seed)


def named(names: Sequence[str], what: str, limit: int = 10) -> str:
    """Count and list names for a message, at most `limit` of them: "2 classes ('a', 'b')"."""
    shown = ", ".join(repr(name) for name in names[:limit])
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    plural = {"class": "classes"}.get(what, f"{what}s")
    return f"{len(names)} {what if len(names) == 1 else plural} ({shown}{more})"
