from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from PIL import Image

from made_up_grids import Finished
from phpq.data import open_dataset
from phpq.reproduce.store import KeptCodes
from phpq.reproduce.top10 import draw_top10, shared_queries


def kept(finished: Finished, method: str) -> KeptCodes:
    key = finished.plan.places["table1", method, 16, 0]
    found = finished.place.store.read_codes(key)
    assert found is not None
    return found


def test_the_picture_and_its_count(finished: Finished) -> None:
    plan, records = finished.planned("top10"), finished.result.records
    dataset = open_dataset(plan.subject.source)
    drawn = draw_top10(plan, records, finished.place.store, dataset)
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
    assert draw_top10(plan, records, finished.place.store, None) is None
    dataset = open_dataset(plan.subject.source)
    assert draw_top10(plan, {}, finished.place.store, dataset) is None


def test_queries_are_spread_over_the_classes_that_both_have(finished: Finished) -> None:
    first = kept(finished, "phpq")
    assert shared_queries(first, first) == [0, 2, 4, 6]
    some = replace(first, query_rows=first.query_rows[1:4])
    assert shared_queries(first, some) == [1, 2]
