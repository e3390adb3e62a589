from __future__ import annotations

from pathlib import Path

import numpy as np

from made_up_galleries import make_record, make_store
from phpq.gallery import GalleryStore
from phpq.gallery.fragments import write_at, write_here
from phpq.gallery.records import to_table


def files(store: GalleryStore) -> set[Path]:
    return set((store.folder / "images.lance" / "data").iterdir())


def test_fragments_of_a_dead_writer_are_never_read_and_go_with_compact(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("a", 1)])
    before = files(store)
    lost = to_table([make_record("lost", 2)], np.array([1]), store.dataset.schema)
    write_here(lost, store.dataset)
    write_at(lost, str(store.folder / "images.lance"), store.version)
    orphans = files(store) - before
    assert len(orphans) == 2
    reopened = GalleryStore.open(store.folder)
    assert [record.id for record in reopened.find(["a", "lost"]).values()] == ["a"]
    assert len(reopened) == 1
    reopened.put([make_record("b", 3)])
    assert reopened.compact() > 0
    assert not orphans & files(store)
    assert set(GalleryStore.open(store.folder).find(["a", "b", "lost"])) == {"a", "b"}


def test_rows_written_elsewhere_are_those_written_here(tmp_path: Path) -> None:
    here, there = make_store(tmp_path / "here"), make_store(tmp_path / "there")
    uri = str(there.folder / "images.lance")
    groups = [
        [make_record("a", 1), make_record("b", 2, year=3)],  # a column that was not there
        [make_record("c", 3), make_record("a", 4)],  # a replaced one
        [make_record("d", 5, kind="x"), make_record("e", 6)],
    ]
    for records in groups:
        one = here.put(records)
        two = there.put(
            records,
            write=lambda table, data: [
                fragment
                for row in range(table.num_rows)
                for fragment in write_at(table.slice(row, 1), uri, data.version)
            ],
        )
        assert one == two
    tables = [s.dataset.to_table().sort_by("row") for s in (here, GalleryStore.open(there.folder))]
    assert tables[0].equals(tables[1])
    assert len(there.dataset.get_fragments()) > len(here.dataset.get_fragments())
