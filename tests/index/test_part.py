"""A part of an index: codes sorted and grouped, every group listed in its cell."""

from __future__ import annotations

import numpy as np
import pytest

from phpq.index._part import build_part, part_bytes, part_codes, restrict_part


@pytest.mark.parametrize("used", [2, 16])
@pytest.mark.parametrize("books", [1, 2, 3, 4, 7])
def test_groups_rows_and_cells_hold_every_row_once(
    books: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.index.engine.CELL_GROUPS", 0)
    rng = np.random.default_rng(books)
    codes = rng.integers(0, used, (500, books)).astype(np.uint8)
    part = build_part(codes, 40, 16)
    groups = len(part.codes)
    starts = part.starts if part.starts.size else np.arange(501)
    assert len(starts) == groups + 1
    assert sorted(part.rows.tolist()) == list(range(500))
    for group in range(groups):
        rows = part.rows[starts[group] : starts[group + 1]]
        assert (codes[rows] == part.codes[group]).all()
        assert (np.diff(rows.astype(np.int64)) > 0).all()
    as_tuples = [tuple(code) for code in part.codes.tolist()]
    assert as_tuples == sorted(as_tuples)
    for book in range(len(part.cells)):
        pair = part.codes[:, 2 * book : 2 * book + 2].astype(int)
        cell = pair[:, 0] * 16 + pair[:, 1] if pair.shape[1] == 2 else pair[:, 0]
        listed = part.lists[book - 1] if book else np.arange(groups)
        for number in range(256):
            mine = listed[part.cells[book, number] : part.cells[book, number + 1]]
            assert mine.tolist() == np.flatnonzero(cell == number).tolist()
    np.testing.assert_array_equal(part_codes(part), codes)
    assert part.base == 40


def test_codes_that_repeat_are_stored_once() -> None:
    codes = np.tile(np.arange(8, dtype=np.uint8), (100, 1)).reshape(-1, 4)
    part = build_part(codes, 0, 256)
    assert part.codes.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert part.starts.tolist() == [0, 100, 200]
    assert part_bytes(part) == 2 * 4 + 3 * 4 + 200 * 4


def test_codes_that_do_not_repeat_are_stored_by_row() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(-1, 4)[::-1].copy()
    part = build_part(codes, 0, 256)
    assert part.starts.size == 0
    np.testing.assert_array_equal(part.codes, codes[::-1])
    assert part.rows.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("used", [2, 256])
def test_a_restricted_part_holds_the_allowed_rows_and_no_others(used: int) -> None:
    rng = np.random.default_rng(used)
    codes = rng.integers(0, used, (300, 3)).astype(np.uint8)
    part = build_part(codes, 100, 256)
    mask = rng.random(450) < 0.1
    kept = restrict_part(part, mask)
    found = {}
    for group, code in enumerate(kept.codes):
        rows = kept.rows[kept.starts[group] : kept.starts[group + 1]]
        assert len(rows)
        assert (np.diff(rows.astype(np.int64)) > 0).all()
        found.update(dict.fromkeys((rows + 100).tolist(), tuple(code)))
    allowed = np.flatnonzero(mask[100:400])
    assert found == {int(row) + 100: tuple(codes[row]) for row in allowed}
