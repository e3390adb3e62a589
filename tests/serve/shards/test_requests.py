"""Requests travel as they are, and are answered by the shard that they run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.serve.shards.requests import Candidates, Describe, Locate, Search, WordRows
from phpq.serve.shards.shard import Shard


def test_a_request_that_travelled_has_the_same_answer(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n) for n in range(20)])
    shard = Shard(store, make_codebooks(), 1, 2)
    table = make_codebooks().lookup_tables(make_queries(1))[0]
    requests: list[tuple[Any, Any]] = [
        (Describe(), shard.facts.rows),
        (Search(table, 3, leave_out=12), shard.search(Search(table, 3, leave_out=12)).places),
        (Candidates("id", "i15"), np.array([15])),
        (Locate(np.array([13])), np.array([13])),
        (WordRows(0, 2, np.array([0, 1])), np.array([10, 14])),
    ]
    for request, expected in requests:
        answer = cloudpickle.loads(cloudpickle.dumps(request)).run(shard)
        found = getattr(answer, "places", getattr(answer, "rows", answer))
        assert np.array_equal(found, expected), request
