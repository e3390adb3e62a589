"""What PHPQ and PQN bring back for the same queries: kept codes and images in, a picture out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from phpq.data import Dataset, hold_out
from phpq.index import CodeIndex
from phpq.report.pictures import HitRow, draw_hits, hit_rows, spread_queries
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.store import KeptCodes, Store
from phpq.reproduce.tables import Records

SHOWN_QUERIES, SHOWN_HITS = 6, 10
_PAIR = ("phpq", "pqn")


def draw_top10(
    plan: GridPlan, records: Records, store: Store, dataset: Dataset | None
) -> tuple[bytes, dict[str, Any]] | None:
    """Draw the first hits of both methods.

    Args:
        plan: With the target "top10".
        records: Of finished cells.
        store: Of the grid.
        dataset: With the images; None if they are not here.

    Returns:
        A PNG, in which the rows of a query stand one below the other, PHPQ first; and what it
        shows: code length, right hits of each method, hits shown of each. None without images, or
        while one of the methods has no codes.
    """
    bits = max(plan.bits)
    kept = {}
    for name in _PAIR:
        key = plan.places["top10", name, bits, plan.seeds[0]]
        codes = store.read_codes(key) if key in records else None
        if codes is None or dataset is None:
            return None
        kept[name] = codes
    assert dataset is not None
    held = plan.subject.base.data.holdout_per_class
    images = hold_out(dataset, held, seed=0) if held else dataset
    chosen = shared_queries(kept["phpq"], kept["pqn"])
    by_method = {name: _search(kept[name], chosen, images) for name in _PAIR}
    rows = [
        replace(row, query_class=f"{name.upper()}: {row.query_class}")
        for pair in zip(*by_method.values(), strict=True)
        for name, row in zip(_PAIR, pair, strict=True)
    ]
    picture = draw_hits(rows, query_image=images.test.read, gallery_image=images.train.read)
    right = {name: sum(sum(row.right) for row in by_method[name]) for name in _PAIR}
    shown = sum(len(row.hits) for row in by_method["phpq"])
    return picture, {"bits": bits, "right": right, "shown": shown}


def shared_queries(first: KeptCodes, second: KeptCodes) -> list[int]:
    """Pick queries that both have, of classes spread over all; returns places in the test split."""
    shared, places, _ = np.intersect1d(first.query_rows, second.query_rows, return_indices=True)
    chosen = spread_queries(first.query_labels[places], SHOWN_QUERIES)
    return [int(shared[place]) for place in chosen]


def _search(kept: KeptCodes, chosen: list[int], dataset: Dataset) -> tuple[HitRow, ...]:
    place = {row: number for number, row in enumerate(kept.query_rows.tolist())}
    found = CodeIndex(kept.codebooks, kept.codes).search(
        kept.queries[[place[row] for row in chosen]], SHOWN_HITS, query_norm=kept.query_norm
    )
    return hit_rows(
        np.where(found.ids >= 0, kept.gallery_rows[found.ids], -1),  # to places in the split
        chosen,
        query_labels=dataset.test.labels,
        gallery_labels=dataset.train.labels,
        class_names=dataset.class_names,
    )
