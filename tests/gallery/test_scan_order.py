from __future__ import annotations

import numpy as np
import pytest

from phpq.gallery.scan_order import locate


def test_sorted_rows_need_no_order() -> None:
    places, order = locate(3, np.array([2, 5, 9]))
    assert order is None
    assert places.offsets is None
    assert places.version == 3


@pytest.mark.parametrize("rows", [[5, 2, 9], [9, 5, 2], [2, 9, 5, 0]])
def test_every_row_is_found_where_the_scan_met_it(rows: list[int]) -> None:
    places, order = locate(1, np.array(rows))
    assert order is not None
    assert places.offsets is not None
    assert places.rows.tolist() == sorted(rows)
    for row, offset in zip(places.rows, places.offsets, strict=True):
        assert rows[offset] == row


def test_no_rows() -> None:
    places, order = locate(1, np.empty(0, np.int64))
    assert len(places.rows) == 0
    assert order is None
