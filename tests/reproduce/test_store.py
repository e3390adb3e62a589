from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_up_grids import made_up_record, tiny_plan
from phpq.errors import ConfigError, FormatError
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
    assert store.finished(cell, "none") is None
    record = made_up_record(cell, plan, 50.0)
    store.write_record(record)
    assert store.finished(cell, "none") == record


def test_what_does_not_count_as_finished(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh", seeds=(0, 1))
    cell = plan.cells[1]
    for change in ({"status": "failed"}, {"format": 0}):
        store.record_path(cell.key).unlink(missing_ok=True)
        record = made_up_record(cell, plan, 50.0) | change
        store.write_record(record)
        assert store.finished(cell, "none") is None
    record = made_up_record(cell, plan, 50.0)
    record["config"]["loss"]["tau"] = 9.0
    store.write_record(record)
    assert store.finished(cell, "none") is None


def test_a_cell_that_must_keep_codes_is_not_finished_without(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh")
    cell = plan.cells[0]
    assert cell.keep
    store.write_record(made_up_record(cell, plan, 50.0))
    assert store.finished(cell, "none") is None
    arrays = {"codes": np.arange(6, dtype=np.uint8).reshape(3, 2), "norm": np.array("unit")}
    store.write_arrays(cell, arrays)
    assert store.finished(cell, "none") is not None
    again = store.read_arrays(cell)
    assert str(again["norm"]) == "unit"
    np.testing.assert_array_equal(again["codes"], arrays["codes"])


def test_features_have_a_folder_of_their_own(store: Store) -> None:
    cell = replace(tiny_plan("table1", "dpsh").cells[0], kind="features")
    assert store.arrays_path(cell).parent.name == "features"


def test_damage_is_named(store: Store) -> None:
    plan = tiny_plan("table1", "dpsh")
    cell = plan.cells[0]
    store.arrays_path(cell).write_bytes(b"not an archive")
    with pytest.raises(FormatError, match=r"Cannot read .*made anew"):
        store.read_arrays(cell)
    store.record_path(cell.key).write_text("{", "utf-8")
    with pytest.raises(FormatError, match=r"damaged.*run again"):
        store.read(cell.key)
    store.record_path(cell.key).write_text("{}", "utf-8")
    with pytest.raises(FormatError, match="lacks"):
        store.read(cell.key)


def test_the_manifest(store: Store, tmp_path: Path) -> None:
    assert store.read_manifest() == {}
    store.write_manifest({"dataset": {"name": "birds"}})
    assert store.read_manifest()["dataset"]["name"] == "birds"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out DIR"):
        Store(tmp_path / "file").prepare()
