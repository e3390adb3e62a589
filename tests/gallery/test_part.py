"""Parts of a gallery: put together they are the whole, in whatever order its files hold it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import make_record, make_store
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery._part import batches, find_part, part_bounds


def shuffled_store(folder: Path) -> GalleryStore:
    """Return a gallery of several files with deleted and replaced rows."""
    store = make_store(folder)
    for start in range(0, 60, 12):
        numbers = range(start, start + 12)
        store.put([make_record(f"i{n}", n, label="ab"[n % 2], year=n) for n in numbers])
    store.delete([f"i{n}" for n in range(0, 60, 7)])
    store.put([make_record(f"i{n}", n + 3, year=n) for n in (1, 20, 41, 70)])
    return store


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 80])
@pytest.mark.parametrize("compacted", [False, True])
def test_parts_put_together_are_the_whole(tmp_path: Path, parts: int, compacted: bool) -> None:
    store = shuffled_store(tmp_path / "g")
    if compacted:
        store.compact()
    whole = find_part(store)
    expected = [name for table in batches(store) for name in table["id"].to_pylist()]
    found = [find_part(store, number, parts) for number in range(parts)]
    assert np.array_equal(np.concatenate([part.rows for part in found]), whole.rows)
    assert np.array_equal(np.concatenate([part.codes() for part in found]), whole.codes())
    assert {part.total for part in found} == {len(whole.rows)}
    names: list[str | None] = [None] * len(whole.rows)
    for part in found:
        assert len(part.rows) in (len(expected) // parts, len(expected) // parts + 1)
        for places, texts in part.texts("id"):
            for place, text in zip(places.tolist(), texts, strict=True):
                names[part.first + place] = text
        offsets = part.first + np.arange(len(part.rows)) if part.offsets is None else part.offsets
        taken = [record.id for record in store.take(offsets)]
        assert taken == expected[part.first : part.first + len(part.rows)]
        for place, name in enumerate(taken):
            assert part.positions_of("id", name).tolist() == [place]
    assert names == expected
    where = [part.first + np.flatnonzero(part.mask_where("year % 3 = 1")) for part in found]
    rows = whole.rows[np.concatenate(where)]
    assert np.array_equal(rows, store.rows_where("year % 3 = 1"))


def test_only_the_files_of_a_part_are_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    for start in range(0, 40, 10):
        store.put([make_record(f"i{n}", n) for n in range(start, start + 10)])
    assert [len(find_part(store, number, 4).fragments) for number in range(4)] == [1] * 4
    assert find_part(store, 1, 2).offsets is None


def test_a_version_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("a")])
    old = store.version
    store.put([make_record("b")])
    assert find_part(GalleryStore.open(tmp_path / "g", version=old)).total == 1
    assert find_part(GalleryStore.open(tmp_path / "g")).total == 2
    store.compact()
    with pytest.raises(FormatError, match="phpq gallery verify"):
        find_part(GalleryStore.open(tmp_path / "g", version=old))


def test_an_empty_part_still_refuses_a_bad_expression(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("a")])
    part = find_part(store, 0, 3)
    assert (len(part.rows), part.codes().shape) == (0, (0, 3))
    assert not len(part.mask_where("id = 'a'"))
    with pytest.raises(ConfigError, match="colour"):
        part.mask_where("colour = 'red'")


def test_damage_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    record = make_record("a")
    record.code[0] = 1
    store.put([record, make_record("b", 2)])
    store.dataset.update({"check": "check + 1"}, where="id = 'b'")
    store.refresh()
    with pytest.raises(FormatError, match="not what was written"):
        find_part(store, 1, 2).codes()
    find_part(store, 0, 2).codes()


def test_bounds_cover_every_place_once() -> None:
    for total in (0, 1, 5, 64):
        for parts in (1, 2, 3, 7):
            bounds = part_bounds(total, parts)
            assert (bounds[0], bounds[-1], len(bounds)) == (0, total, parts + 1)
            assert set(np.diff(bounds)) <= {total // parts, total // parts + 1}
