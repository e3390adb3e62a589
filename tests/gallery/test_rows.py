"""Rows by place and by scan, the same from the copy and from Lance; and versions that are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from made_up_galleries import make_record, make_store
from phpq.errors import FormatError
from phpq.gallery import GalleryStore
from phpq.gallery._rows import is_kept, keep_version, release_all_but
from phpq.gallery.records import numbers


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_scans_and_places_agree(tmp_path: Path, rows: int) -> None:
    store = make_store(tmp_path / "g")
    for start in range(0, 30, 10):
        store.put([make_record(f"i{n}", n, label=None) for n in range(start, start + 10)])
    store.copy()
    fast = GalleryStore.open(store.folder)
    assert store.copied is None
    assert fast.copied is not None
    columns, wanted = ["id", "label", "code"], np.array([29, 0, 0, 13])
    for source in (store, fast):
        batches = list(source.scan(columns, rows=rows))
        assert max(batch.num_rows for batch in batches) <= rows
        whole = pa.Table.from_batches(batches)
        assert whole["id"].to_pylist() == [f"i{n}" for n in range(30)]
        taken = source.rows_at(wanted, columns)
        assert taken.to_pylist() == whole.take(wanted.tolist()).to_pylist()
        assert source.rows_at(wanted[:0], columns).num_rows == 0


def test_numbers_are_those_of_arrow() -> None:
    column = pa.chunked_array([[1, 2], [], [3]], pa.int64())
    assert numbers(column).tolist() == [1, 2, 3]
    assert numbers(column.slice(1)).tolist() == [2, 3]
    empty = numbers(pa.chunked_array([], pa.uint32()))
    assert (empty.shape, empty.dtype) == ((0,), np.dtype(np.uint32))


def test_a_version_is_kept_until_it_is_released(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    versions = []
    for number in range(3):
        store.put([make_record(f"i{number}", number)])
        versions.append(store.version)
        keep_version(store.dataset, store.version)
        keep_version(store.dataset, store.version)  # as good as once
    store.dataset.tags.create("mine", versions[0])
    assert all(is_kept(store.dataset, version) for version in versions)
    assert release_all_but(store.dataset, versions[1]) == [versions[1]]
    assert [is_kept(store.dataset, version) for version in versions] == [False, True, False]
    assert "mine" in store.dataset.tags.list()
    store.put([make_record("last")])
    assert release_all_but(store.dataset, 99) == []
    store.dataset.tags.delete("mine")
    store.compact()
    with pytest.raises(FormatError):
        GalleryStore.open(store.folder, version=versions[1])
