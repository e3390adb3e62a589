from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from made_up_grids import Finished
from phpq.binary_codes import hamming_distances
from phpq.codes import CodeArray
from phpq.reproduce import efficiency
from phpq.reproduce.efficiency import time_searches


def test_every_way_is_timed(finished: Finished) -> None:
    plan = finished.planned("efficiency")
    records = finished.result.records
    timed = time_searches(plan, records, finished.place.store, repeats=1)
    ways = {(row["name"], row["engine"]) for row in timed["rows"]}
    assert ways == {
        ("pq", "index"),
        ("itq", "index"),
        ("itq", "hamming (faiss)"),
        ("adsh", "index"),
        ("adsh", "hamming (faiss)"),
        ("pqn", "index"),
        ("orthohash", "index"),
        ("orthohash", "hamming (faiss)"),
        ("phpq", "index"),
        ("float", "float"),
    }
    assert all(row["ms"] > 0 for row in timed["rows"])
    scores = {row["name"]: row["map"] for row in timed["rows"]}
    adsh = records[plan.places["efficiency", "adsh", 16, 0]]
    phpq = records[plan.places["efficiency", "phpq", 16, 0]]
    assert scores["adsh"] == round(adsh["map_learned"], 2)
    assert scores["float"] == round(phpq["map_float"], 2)


def test_cells_that_are_not_run_are_left_out(finished: Finished) -> None:
    plan = finished.planned("efficiency")
    key = plan.places["efficiency", "pq", 16, 0]
    timed = time_searches(
        plan, {key: finished.result.records[key]}, finished.place.store, repeats=1
    )
    assert [row["name"] for row in timed["rows"]] == ["pq"]


@pytest.mark.parametrize("installed", [True, False])
def test_hamming_search(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CodeArray] = []
    if not installed:
        monkeypatch.setattr(efficiency, "find_spec", lambda name: None)
        monkeypatch.setattr(efficiency, "_BLOCK_DISTANCES", 40)  # two queries a block

        def counted(queries: CodeArray, gallery: CodeArray) -> object:
            seen.append(queries)
            return hamming_distances(queries, gallery)

        monkeypatch.setattr(efficiency, "hamming_distances", counted)
    rng = np.random.default_rng(0)
    queries, gallery = (
        rng.integers(0, 256, (5, 2), np.uint8),
        rng.integers(0, 256, (20, 2), np.uint8),
    )
    name, search = efficiency._hamming(queries, gallery)
    found: Any = search()
    if installed:
        assert name == "hamming (faiss)"
        distances, _ = found
        expected = np.sort(hamming_distances(queries, gallery), axis=1)[:, :10]
        np.testing.assert_array_equal(distances, expected)
    else:
        assert name == "hamming (popcount)"
        np.testing.assert_array_equal(np.concatenate(seen), queries)
