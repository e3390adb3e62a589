from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_up_grids import Finished, made_up_record, tiny_plan, tiny_subject
from phpq.errors import ConfigError, FormatError
from phpq.files import write_json
from phpq.reproduce.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "grid")
    store.prepare()
    return store


def test_a_finished_cell_is_found_again(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh", seeds=(0, 1))
    cell = plan.cells[1]
    assert not cell.keep
    assert store.finished(plan.cells, "none", with_arrays=True) == {}
    record = made_up_record(cell, plan, 50.0)
    store.write_record(record)
    assert store.finished(plan.cells, "none", with_arrays=True) == {cell.key: record}


def test_what_does_not_count_as_finished(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh", seeds=(0, 1))
    cell = plan.cells[1]
    for change in ({"status": "failed"}, {"format": 0}):
        store.write_record(made_up_record(cell, plan, 50.0) | change)
        assert store.finished([cell], "none", with_arrays=True) == {}
    record = made_up_record(cell, plan, 50.0)
    record["config"]["loss"]["tau"] = 9.0
    store.write_record(record)
    assert store.finished([cell], "none", with_arrays=True) == {}


def test_the_last_record_of_a_cell_counts(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh", seeds=(0, 1))
    for score in (50.0, 60.0):
        for cell in plan.cells:
            store.write_record(made_up_record(cell, plan, score, commit="\u2028 ü"))
    records = store.read_records()
    assert {key: record["map"] for key, record in records.items()} == {
        cell.key: 60.0 for cell in plan.cells
    }
    assert len(store.records_path.read_bytes().split(b"\n")) == 2 * 2 + 1


@pytest.mark.parametrize("cut", [1, 2, 100, -1])
def test_half_a_line_is_ignored_and_repaired(store: Store, cut: int) -> None:
    """A process that was killed while it wrote loses that record and no other."""
    plan = tiny_plan("table1", "dpsh", seeds=(0, 1))
    first, second = (made_up_record(cell, plan, 50.0) for cell in plan.cells)
    store.write_record(first)
    whole = store.records_path.read_bytes()
    store.write_record(second)
    line = store.records_path.read_bytes()[len(whole) :]
    store.records_path.write_bytes(whole + line[:cut])
    # All but the newline: nothing is lost.
    known = [first, second] if cut == -1 else [first]
    assert list(store.read_records().values()) == known
    store.prepare()
    store.write_record(second | {"map": 70.0})
    assert [record["map"] for record in store.read_records().values()] == [50.0, 70.0]
    assert store.records_path.read_bytes().startswith(whole)


def test_a_folder_of_version_0_1_0(store: Store) -> None:
    """One file per cell: they are read, and moved into the one file by who is to write."""
    plan = tiny_plan("table1", "dpsh", "csq", seeds=(0, 1))
    *old, new = (made_up_record(cell, plan, 50.0) for cell in plan.cells)
    for record in old:
        write_json(store.folder / "cells" / f"{record['key']}.json", record)
    expected = {record["key"]: record for record in old}
    assert store.read_records() == expected
    assert not store.records_path.exists()
    store.prepare()
    newer = old[0] | {"map": 60.0}
    for record in (new, newer):
        store.write_record(record)
    assert not list(store.folder.glob("cells/*.json"))
    assert store.read_records() == expected | {r["key"]: r for r in (new, newer)}
    # Killed before the old files were removed: the one file is the newer.
    write_json(store.folder / "cells" / f"{newer['key']}.json", old[0])
    assert store.read_records()[newer["key"]]["map"] == 60.0
    store.prepare()
    assert store.read_records()[newer["key"]]["map"] == 60.0
    assert not list(store.folder.glob("cells/*.json"))


def test_a_cell_that_must_keep_codes_is_not_finished_without(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh")
    cell = plan.cells[0]
    assert cell.keep
    store.write_record(made_up_record(cell, plan, 50.0))
    assert store.finished([cell], "none", with_arrays=True) == {}
    arrays = {"codes": np.arange(6, dtype=np.uint8).reshape(3, 2), "norm": np.array("unit")}
    store.write_arrays(cell, arrays)
    assert store.finished([cell], "none", with_arrays=True)
    again = store.read_arrays(cell.key, cell.kind)
    assert str(again["norm"]) == "unit"
    np.testing.assert_array_equal(again["codes"], arrays["codes"])


def test_what_others_start_from_has_a_folder_of_its_own(store: Store) -> None:
    plan = tiny_plan("table1", "lsh", subject=tiny_subject("method.classifier_share=0.5"))
    features = next(cell for cell in plan.cells if cell.kind == "features")
    for cell in (features, replace(features, key="other", kind="backbone")):
        store.write_record(made_up_record(cell, plan, 50.0))
        assert store.finished([cell], "none", with_arrays=True) == {}
        path = store.arrays_path(cell.key, cell.kind)
        assert path.parent.name == "features"
        path.write_bytes(b"")
        assert store.finished([cell], "none", with_arrays=True)


def test_damage_is_named(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh")
    cell = plan.cells[0]
    store.arrays_path(cell.key, cell.kind).write_bytes(b"not an archive")
    with pytest.raises(FormatError, match=r"Cannot read .*made anew"):
        store.read_arrays(cell.key, cell.kind)
    store.records_path.write_text("{\n{}\n", "utf-8")
    with pytest.raises(FormatError, match=r"Line 1 of .*is damaged.*run again"):
        store.read_records()
    store.records_path.write_text("\n{}\n", "utf-8")
    with pytest.raises(FormatError, match=r"Line 2 of .*lacks.*run again"):
        store.read_records()
    store.records_path.unlink()
    (store.folder / "cells" / "old.json").write_text("{}", "utf-8")
    with pytest.raises(FormatError, match=r"old.json.*lacks.*run again"):
        store.read_records()


@pytest.mark.parametrize(
    ("method", "binary", "norm"),
    [
        ("phpq", False, "unit"),
        ("pqn", False, None),
        ("pq", False, "raw"),
        ("itq", True, "raw"),
        ("orthohash", True, "raw"),
        ("adsh", True, "raw"),
    ],
)
def test_kept_codes(finished: Finished, method: str, binary: bool, norm: str | None) -> None:
    kept = finished.context.store.read_codes(finished.plan.cell_keys["table1", method, 16, 0])
    assert kept is not None
    assert kept.binary is binary
    assert kept.codebooks.bits == 16
    assert kept.codes.shape == (24, 2)
    assert len(kept.queries) == len(kept.query_rows) == len(kept.query_labels) == 8
    assert kept.queries.dtype == np.float32
    if norm is not None:
        assert kept.query_norm == norm


def test_a_cell_that_kept_no_codes(finished: Finished) -> None:
    plan = finished.planned("kappa")
    key = plan.cell_keys["kappa", "kappa-25", 16, 0]
    assert finished.context.store.read_codes(key) is None


def test_the_manifest(store: Store, tmp_path: Path) -> None:
    assert store.read_manifest() == {}
    store.write_manifest({"dataset": {"name": "birds"}})
    assert store.read_manifest()["dataset"]["name"] == "birds"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out DIR"):
        Store(tmp_path / "file").prepare()
