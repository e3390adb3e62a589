"""Where the rows of a version are: the row numbers of a scan in, their sorted order out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phpq.codes import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ScanOrder:
    """Where the rows of a version are.

    Attributes:
        version: Which.
        rows: (N,) int64, ascending.
        offsets: (N,) int64, their places in a scan; None where these are 0 to N - 1.
    """

    version: int
    rows: IntArray
    offsets: IntArray | None


def locate(version: int, rows: IntArray) -> tuple[ScanOrder, IntArray | None]:
    """Sort the rows of a scan; the order is None where they are sorted already."""
    if (rows[1:] > rows[:-1]).all():
        return ScanOrder(version, rows, None), None
    order = np.argsort(rows, kind="stable")
    return ScanOrder(version, rows[order], order), order
