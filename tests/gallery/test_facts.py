from __future__ import annotations

import json
from pathlib import Path

from made_up_galleries import make_record, make_store
from phpq.gallery.facts import describe_store, folder_bytes


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
