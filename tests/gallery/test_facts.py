from __future__ import annotations

import json
from pathlib import Path

from pyarrow import parquet

from made_up_galleries import make_record, make_store
from phpq.gallery.facts import describe_store, export_parquet, folder_bytes


def test_what_a_gallery_holds(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    assert describe_store(store)["images"] == 0
    store.put([make_record("x", 1, year=2020), make_record("y", 1, label="b")])
    store.put([make_record("z", 2, label=None)])
    facts = describe_store(store)
    assert (facts["images"], facts["labels"], facts["unlabelled"]) == (3, 2, 1)
    assert (facts["distinct_codes"], facts["bits"], facts["code_bytes"]) == (2, 6, 9)
    assert facts["metadata"] == {"year": "int64"}
    assert facts["disk_bytes"] == folder_bytes(tmp_path / "g") > 1000
    json.dumps(facts)


def test_export_in_order_of_insertion(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(str(i), i, year=i) for i in range(5)])
    store.put([make_record("1", 9, year=1)])
    path = tmp_path / "new" / "out.parquet"
    assert export_parquet(store, path) == 5
    table = parquet.read_table(path)
    assert table["id"].to_pylist() == ["0", "2", "3", "4", "1"]
    assert table["code"].to_pylist()[4] == make_record("1", 9).code.tolist()
    assert set(table.column_names) == {"id", "uri", "label", "sha256", "code", "year"}
    assert export_parquet(make_store(tmp_path / "empty"), tmp_path / "none.parquet") == 0
    assert len(parquet.read_table(tmp_path / "none.parquet")) == 0
