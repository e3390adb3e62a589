from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from made_up_grids import Finished
from phpq.codes import CodeArray, hamming_distances
from phpq.data import open_dataset
from phpq.reproduce import figures
from phpq.reproduce.figures import draw_top10, shared_queries, time_searches
from phpq.reproduce.store import KeptCodes


def test_every_way_is_timed(finished: Finished) -> None:
    plan = finished.planned("efficiency")
    records = finished.result.records
    timed = time_searches(plan, records, finished.context.store, repeats=1)
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
    adsh = records[plan.cell_keys["efficiency", "adsh", 16, 0]]
    phpq = records[plan.cell_keys["efficiency", "phpq", 16, 0]]
    assert scores["adsh"] == round(adsh["map_learned"], 2)
    assert scores["float"] == round(phpq["map_float"], 2)


def test_cells_that_are_not_run_are_left_out(finished: Finished) -> None:
    plan = finished.planned("efficiency")
    key = plan.cell_keys["efficiency", "pq", 16, 0]
    timed = time_searches(
        plan, {key: finished.result.records[key]}, finished.context.store, repeats=1
    )
    assert [row["name"] for row in timed["rows"]] == ["pq"]


@pytest.mark.parametrize("installed", [True, False])
def test_hamming_search(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CodeArray] = []
    if not installed:
        monkeypatch.setattr(figures, "find_spec", lambda name: None)
        monkeypatch.setattr(figures, "_BLOCK_DISTANCES", 40)  # two queries a block

        def counted(queries: CodeArray, gallery: CodeArray) -> object:
            seen.append(queries)
            return hamming_distances(queries, gallery)

        monkeypatch.setattr(figures, "hamming_distances", counted)
    rng = np.random.default_rng(0)
    queries, gallery = (
        rng.integers(0, 256, (5, 2), np.uint8),
        rng.integers(0, 256, (20, 2), np.uint8),
    )
    name, search = figures._hamming(queries, gallery)
    found: Any = search()
    if installed:
        assert name == "hamming (faiss)"
        distances, _ = found
        expected = np.sort(hamming_distances(queries, gallery), axis=1)[:, :10]
        np.testing.assert_array_equal(distances, expected)
    else:
        assert name == "hamming (popcount)"
        np.testing.assert_array_equal(np.concatenate(seen), queries)


def kept(finished: Finished, method: str) -> KeptCodes:
    key = finished.plan.cell_keys["table1", method, 16, 0]
    found = finished.context.store.read_codes(key)
    assert found is not None
    return found


def test_the_picture_and_its_count(finished: Finished) -> None:
    plan, records = finished.planned("top10"), finished.result.records
    dataset = open_dataset(plan.subject.source)
    drawn = draw_top10(plan, records, finished.context.store, dataset)
    assert drawn is not None
    data, facts = drawn
    assert (facts["bits"], facts["shown"]) == (16, 4 * 10)  # a query of each of four species
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.height > picture.width / 2
    for name, right in facts["right"].items():
        assert right == _right_by_loop(kept(finished, name)), name


def _right_by_loop(one: KeptCodes) -> int:
    right = 0
    for query in range(0, 8, 2):  # the first of each species
        scores = one.codebooks.lookup_tables(one.queries[query : query + 1], norm=one.query_norm)[0]
        sums = [sum(scores[m, word] for m, word in enumerate(code)) for code in one.codes]
        best = np.lexsort((np.arange(24), -np.array(sums, dtype=np.float32)))[:10]
        right += int((one.gallery_labels[best] == one.query_labels[query]).sum())
    return right


def test_nothing_to_draw(finished: Finished) -> None:
    plan, records = finished.planned("top10"), finished.result.records
    assert draw_top10(plan, records, finished.context.store, None) is None
    dataset = open_dataset(plan.subject.source)
    assert draw_top10(plan, {}, finished.context.store, dataset) is None


def test_queries_are_spread_over_the_classes_that_both_have(finished: Finished) -> None:
    first = kept(finished, "phpq")
    assert shared_queries(first, first) == [0, 2, 4, 6]
    some = replace(first, query_rows=first.query_rows[1:4])
    assert shared_queries(first, some) == [1, 2]
