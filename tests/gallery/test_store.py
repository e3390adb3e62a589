"""The gallery on disk: what is written is read, whoever writes, and whoever dies."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from made_up_galleries import make_codebooks, make_record, make_store
from phpq.errors import ConfigError, DataError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import HINT, IMAGES, MANIFEST, new_manifest
from phpq.gallery.records import to_table
from phpq.gallery.store import write_at, write_here


def ids_of(store: GalleryStore) -> list[str]:
    return [name for table in batches(store) for name in table["id"].to_pylist()]


def test_rows_are_numbered_in_order_and_replaced_ones_come_last(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    assert store.put([make_record(str(i), i) for i in range(5)]) == 0
    assert find_part(store).rows.tolist() == [0, 1, 2, 3, 4]
    assert store.put([make_record("1", 9), make_record("new", 8)]) == 1
    assert ids_of(store) == ["0", "2", "3", "4", "1", "new"]
    stored = find_part(store)
    assert stored.rows.tolist() == [0, 2, 3, 4, 5, 6]
    assert stored.codes()[4].tolist() == make_record("1", 9).code.tolist()
    assert store.delete(["0", "nobody"]) == 1
    store.compact()
    again = GalleryStore.open(tmp_path / "g")
    assert ids_of(again) == ids_of(store) == ["2", "3", "4", "1", "new"]
    assert find_part(again).rows.tolist() == [2, 3, 4, 5, 6]
    again.put([make_record("z")])  # numbers go on above the last row that is left
    assert find_part(again).rows.tolist() == [2, 3, 4, 5, 6, 7]


def test_what_is_put_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g", keep_embeddings=True)
    embedding = np.arange(6, dtype=np.float16)
    store.put([replace(make_record("it's", 7, year=2021), embedding=embedding)])
    (record,) = GalleryStore.open(tmp_path / "g").find(["it's", "other"]).values()
    assert (record.id, record.label, record.metadata) == ("it's", "a", {"year": 2021})
    assert record.sha256 == bytes([7]) * 32
    assert record.embedding is not None
    assert record.embedding.tolist() == embedding.tolist()


def test_columns_may_come_later(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("x", 1)])
    store.put([make_record("y", 2, year=2020)])
    store.put([make_record("x", 3, year=2019, tag="t")])
    assert store.metadata_columns == ("year", "tag")
    assert store.find(["y"])["y"].metadata == {"year": 2020, "tag": None}
    assert store.count("year < 2020") == 1
    assert store.count("tag IS NULL") == 1
    assert store.count() == len(store) == 2


@pytest.mark.parametrize("where", ["yeer > 3", "label = ", "label", "label = 3", "drop table"])
def test_a_bad_expression_lists_the_columns(tmp_path: Path, where: str) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("x", year=1)])
    with pytest.raises(
        ConfigError, match=r"cannot be used: .*label \(string\), year \(int64\)"
    ) as e:
        store.rows_where(where)
    assert "/" not in str(e.value).split("Columns")[0].replace(where, "")
    assert "check" not in str(e.value)
    with pytest.raises(ConfigError):
        store.delete(where=where)
    assert len(store) == 1


def test_deleting_needs_one_way_to_choose(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(str(i), i, label="ab"[i % 2]) for i in range(6)])
    for choice in ({}, {"ids": ["1"], "where": "label = 'a'"}):
        with pytest.raises(ConfigError, match="either ids, or where"):
            store.delete(**choice)  # type: ignore[arg-type]
    assert store.delete(where="label = 'a'") == 3
    assert ids_of(store) == ["1", "3", "5"]


def test_readers_keep_their_version_until_they_refresh(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record("x", 1)])
    reader = GalleryStore.open(tmp_path / "g")
    store.put([make_record("y", 2)])
    store.delete(["x"])
    assert ids_of(reader) == ["x"]
    reader.refresh()
    assert ids_of(reader) == ["y"]


def test_two_writers_take_turns(tmp_path: Path) -> None:
    first = make_store(tmp_path / "g")
    second = GalleryStore.open(tmp_path / "g")
    for number in range(4):
        first.put([make_record(f"a{number}", number), make_record("both", number)])
        assert second.put([make_record(f"b{number}", number), make_record("both", 9)]) == 1
    first.refresh()
    assert len(ids_of(first)) == len(set(ids_of(first))) == 9
    assert np.diff(find_part(first).rows).min() > 0


def test_compacting_frees_what_was_deleted(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    for number in range(5):
        store.put([make_record(f"{number} {i}", i) for i in range(200)])
    store.delete(where="id NOT LIKE '4 %'")
    assert len(store.dataset.get_fragments()) == 1
    junk = tmp_path / "g" / IMAGES / "data" / "left-by-a-crash.lance"
    junk.write_bytes(b"x" * 1000)
    assert store.compact() > 5000
    assert not junk.exists()
    assert len(store.dataset.versions()) == 1
    assert len(ids_of(store)) == 200


def test_merging_small_files_keeps_old_readers(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    for number in range(5):
        store.put([make_record(str(number), number)])
    reader = GalleryStore.open(tmp_path / "g")
    store.merge_files(above=5)
    assert len(store.dataset.get_fragments()) == 5
    store.merge_files(above=4)
    assert len(store.dataset.get_fragments()) == 1
    assert ids_of(store) == ids_of(reader) == ["0", "1", "2", "3", "4"]


def test_a_gallery_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise ZeroDivisionError

    manifest = new_manifest(make_codebooks(), "x")
    with pytest.raises(ZeroDivisionError):
        GalleryStore.create(tmp_path / "g", manifest, fill=fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "g").mkdir()  # empty: may be used
    GalleryStore.create(tmp_path / "g", manifest)
    with pytest.raises(DataError, match="exists already"):
        GalleryStore.create(tmp_path / "g", manifest)


def test_damage_is_named_when_it_is_opened_or_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(str(i), i) for i in range(50)])

    def damaged(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "g", tmp_path / name))

    repair = "phpq gallery verify --repair"
    folder = damaged("version")
    newest = min((folder / IMAGES / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes()[:20])
    with pytest.raises(FormatError, match=repair):
        GalleryStore.open(folder)
    newest.unlink()
    with pytest.raises(FormatError, match="version 2 is missing"):
        GalleryStore.open(folder)
    folder = damaged("data")
    next((folder / IMAGES / "data").iterdir()).write_bytes(b"short")
    with pytest.raises(FormatError, match=repair):
        find_part(GalleryStore.open(folder)).codes()
    folder = damaged("gone")
    shutil.rmtree(folder / IMAGES)
    with pytest.raises(FormatError, match=repair):
        GalleryStore.open(folder)
    folder = damaged("hint")
    (folder / IMAGES / HINT).unlink()
    assert len(GalleryStore.open(folder)) == 50


def test_a_flipped_byte_in_a_code_is_seen(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(str(i), i) for i in range(64)])
    file = next((tmp_path / "g" / IMAGES / "data").iterdir())
    codes = b"".join(make_record("", i).code.tobytes() for i in range(64))
    content = file.read_bytes()
    assert content.count(codes) == 1  # the codes lie in the file as they are
    file.write_bytes(content.replace(codes, codes[:-1] + bytes([codes[-1] ^ 1])))
    with pytest.raises(FormatError, match="codes are not what was written"):
        find_part(GalleryStore.open(tmp_path / "g")).codes()


def test_codes_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "g")
    for first in (0, 7):
        store.put([make_record(f"n{n}", n) for n in range(first, first + 7)])
    store.delete(["n3", "n9"])
    store.put([make_record("n5", 40)])  # replaced: it comes last
    whole = find_part(store)
    expected = whole.codes()
    monkeypatch.setattr("phpq.gallery._part._SCAN_ROWS", 4)
    blocks = find_part(GalleryStore.open(tmp_path / "g"))
    assert len(blocks.codes()) == 12
    np.testing.assert_array_equal(blocks.rows, whole.rows)
    np.testing.assert_array_equal(blocks.codes(), expected)
    np.testing.assert_array_equal(blocks.codes()[-1], make_record("n5", 40).code)


def test_codes_of_another_model_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "g")
    path = tmp_path / "g" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_fingerprint": "other"}))
    with pytest.raises(FormatError, match="made by another model"):
        GalleryStore.open(tmp_path / "g")


def test_a_commit_while_it_is_opened_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_store(tmp_path / "g")
    writer.put([make_record("x")])
    plain = lance.dataset

    def slow(*given: Any, **named: Any) -> Any:
        opened = plain(*given, **named)
        monkeypatch.undo()  # once
        writer.put([make_record("y")])
        return opened

    monkeypatch.setattr(lance, "dataset", slow)
    assert ids_of(GalleryStore.open(tmp_path / "g")) == ["x"]
    assert ids_of(GalleryStore.open(tmp_path / "g")) == ["x", "y"]


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
