"""Facts, Parquet and faiss: what leaves a gallery is what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from pyarrow import parquet

from made_up_galleries import make_codebooks, make_record, make_store
from phpq.codes import pack_codes
from phpq.errors import ConfigError
from phpq.gallery.export import describe_store, export_parquet, folder_bytes, to_faiss, write_faiss


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


def test_a_faiss_index_and_its_ids_are_written(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    records = [make_record(str(i), i * 5 % 64) for i in range(12)]
    store.put(records)
    made = to_faiss(store, make_codebooks())
    path, names = write_faiss(made.index, made.ids, tmp_path / "out.faiss")
    ids = json.loads(names.read_text("utf-8"))["ids"]
    assert ids == [record.id for record in records]
    index: Any = faiss.read_index(str(path))
    packed = faiss.vector_to_array(index.codes).reshape(12, -1)
    expected = pack_codes(np.stack([record.code for record in records]), 2)
    np.testing.assert_array_equal(packed, expected)
    with pytest.raises(ConfigError, match="There is no folder"):
        write_faiss(made.index, made.ids, tmp_path / "none" / "out.faiss")


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
