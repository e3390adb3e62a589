"""Texts in, the rows that hold a text out: 12 bytes a row, whatever the length of the texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phpq.codes import IntArray
from phpq.gallery.part import StoredPart


class Names:
    """Finds rows of a part by a text column.

    Args:
        part: The rows.
        column: Of the store.
    """

    def __init__(self, part: StoredPart, column: str) -> None:
        # The hash differs from process to process, and nothing of it leaves this one.
        hashes = np.empty(len(part.rows), np.int64)
        for places, texts in part.texts(column):
            hashes[places] = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._order = order.astype(np.uint32 if len(order) <= 1 << 32 else np.int64)

    def candidates(self, text: str) -> IntArray:
        """Return the positions in the part, ascending, that may hold `text`."""
        wanted = np.int64(hash(text))
        first = np.searchsorted(self._hashes, wanted, side="left")
        last = np.searchsorted(self._hashes, wanted, side="right")
        return self._order[first:last].astype(np.int64)

    def memory_bytes(self) -> int:
        """Return the memory of hashes and order."""
        return int(self._hashes.nbytes + self._order.nbytes)


def number_labels(part: StoredPart) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the distinct labels of a part, sorted, and (n,) int32 their numbers, -1 for none."""
    numbers: dict[str | None, int] = {None: -1}
    label_of = np.empty(len(part.rows), np.int32)
    for places, texts in part.texts("label"):
        label_of[places] = [numbers.setdefault(text, len(numbers) - 1) for text in texts]
    names = [name for name in numbers if name is not None]
    order = sorted(range(len(names)), key=names.__getitem__)
    # One more entry, the last, for -1.
    final = np.full(len(names) + 1, -1, np.int32)
    final[order] = np.arange(len(names), dtype=np.int32)
    return tuple(names[number] for number in order), final[label_of]
