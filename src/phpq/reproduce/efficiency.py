"""The time of 1,000 queries beside MAP: kept codes in, milliseconds of each way to search out.

Embedding the queries is the same work for all ways and left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from phpq.binary_codes import hamming_distances, pack_signs
from phpq.codes import CodeArray, normalise_sub_vectors
from phpq.evaluation.timing import search_float, time_in_turns
from phpq.index import CodeIndex
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.rows import Row
from phpq.reproduce.store import KeptCodes, Store
from phpq.reproduce.tables import Records

QUERIES, TOP_K, REPEATS = 1000, 10, 5
_BLOCK_DISTANCES = 1 << 22  # Hamming distances of one block of queries

Search = Callable[[], object]


def time_searches(
    plan: GridPlan, records: Records, store: Store, *, repeats: int = REPEATS
) -> dict[str, Any]:
    """Time every method and code length of the plan that has kept codes.

    Args:
        plan: With the target "efficiency".
        records: Of finished cells.
        store: Of the grid.
        repeats: Timed repeats, after one that warms up.

    Returns:
        {"rows": [{name, title, bits, engine, map, ms}], ...}; float search over PHPQ's embeddings
        is a row for each code length.
    """
    rows: list[dict[str, Any]] = []
    searches: list[Search] = []
    for row in plan.rows["efficiency"]:
        for bits in plan.bits:
            key = plan.places["efficiency", row.name, bits, plan.seeds[0]]
            kept = store.read_codes(key) if key in records else None
            for facts, search in () if kept is None else _ways(row, records[key], kept):
                name = {"name": row.name, "title": row.figure_title, "bits": bits}
                rows.append(name | facts | {"map": round(facts["map"], 2)})
                searches.append(search)
    for row_facts, seconds in zip(rows, time_in_turns(searches, repeats), strict=True):
        row_facts["ms"] = round(1000 * seconds, 3)
    return {
        "figure": "efficiency",
        "dataset": plan.subject.facts(),
        "queries": QUERIES,
        "top_k": TOP_K,
        "repeats": repeats,
        "cpu_cores": os.cpu_count(),
        "rows": rows,
    }


def _ways(
    row: Row, record: dict[str, Any], kept: KeptCodes
) -> Iterator[tuple[dict[str, Any], Search]]:
    """Yield the ways to search the codes of a cell: what is particular to each, and the search."""
    batch = kept.queries[np.arange(QUERIES) % len(kept.queries)]
    if kept.query_norm == "unit":  # the same work for all, so it is done before
        batch = normalise_sub_vectors(batch, kept.codebooks.num_codebooks)
    score = record.get("map_learned", record["map"])
    index = CodeIndex(kept.codebooks, kept.codes)
    yield (
        {"engine": "index", "map": score},
        lambda: index.search(batch, TOP_K, query_norm="raw"),
    )
    if kept.binary:
        engine, search = _hamming(pack_signs(batch), kept.codes)
        yield {"engine": engine, "map": score}, search
    if "map_float" in record and row.name == "phpq":
        gallery = kept.codebooks.decode(kept.codes)  # as many floats as the embeddings have
        title = f"float search, {gallery.shape[1]} numbers per image"
        yield (
            {"name": "float", "title": title, "engine": "float", "map": record["map_float"]},
            lambda: search_float(batch, gallery, top_k=TOP_K),
        )


def _hamming(queries: CodeArray, gallery: CodeArray) -> tuple[str, Search]:
    """Return the best Hamming search that is here: faiss, or population counts by numpy."""
    top_k = min(TOP_K, len(gallery))
    if find_spec("faiss") is not None:
        import faiss

        index = faiss.IndexBinaryFlat(8 * gallery.shape[1])
        index.add(np.ascontiguousarray(gallery))
        return "hamming (faiss)", lambda: index.search(queries, top_k)
    step = max(1, _BLOCK_DISTANCES // len(gallery))

    def popcount() -> None:
        for start in range(0, len(queries), step):
            distances = hamming_distances(queries[start : start + step], gallery)
            np.argpartition(distances, top_k - 1, axis=1)

    return "hamming (popcount)", popcount
