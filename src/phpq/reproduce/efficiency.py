"""The time of 1,000 queries beside MAP: kept codes in, milliseconds of each way to search out.

All ways are timed in this process, in turns: each repeat times every one of them once, so that a
busy machine disturbs all alike. Embedding the queries is the same work for all and left out.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from phpq.binary_codes import hamming_distances, pack_signs
from phpq.codes import CodeArray, normalise_sub_vectors
from phpq.evaluation.timing import search_float
from phpq.index import CodeIndex
from phpq.reproduce.grid import Plan
from phpq.reproduce.kept import KeptCodes, read_kept
from phpq.reproduce.store import Store
from phpq.reproduce.tables import Records

QUERIES, TOP_K, REPEATS = 1000, 10, 5
_BLOCK_DISTANCES = 1 << 22  # Hamming distances of one block of queries


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to search: who, how, and what to call."""

    name: str
    title: str
    bits: int
    engine: str
    map: float
    search: Callable[[], object]


def time_searches(
    plan: Plan, records: Records, store: Store, *, repeats: int = REPEATS
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
    ways = [way for row in _method_ways(plan, records, store) for way in row]
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(repeats + 1):
        for way, mine in zip(ways, times, strict=True):
            begun = time.perf_counter()
            way.search()
            if repeat:  # the first warms up caches, threads and compiled code
                mine.append(time.perf_counter() - begun)
    rows = [
        {
            "name": way.name,
            "title": way.title,
            "bits": way.bits,
            "engine": way.engine,
            "map": round(way.map, 2),
            "ms": round(1000 * statistics.median(mine), 3),
        }
        for way, mine in zip(ways, times, strict=True)
    ]
    return {
        "figure": "efficiency",
        "dataset": plan.subject.facts(),
        "queries": QUERIES,
        "top_k": TOP_K,
        "repeats": repeats,
        "cpu_cores": os.cpu_count(),
        "rows": rows,
    }


def _method_ways(plan: Plan, records: Records, store: Store) -> list[list[_Way]]:
    ways = []
    for row in plan.rows["efficiency"]:
        for bits in plan.bits:
            key = plan.places["efficiency", row.name, bits, plan.seeds[0]]
            kept = read_kept(plan, store, key) if key in records else None
            if kept is not None:
                ways.append(_ways(row.name, row.figure_title, bits, records[key], kept))
    return ways


def _ways(name: str, title: str, bits: int, record: dict[str, Any], kept: KeptCodes) -> list[_Way]:
    batch = kept.queries[np.arange(QUERIES) % len(kept.queries)]
    if kept.query_norm == "unit":  # the same work for all, so it is done before
        batch = normalise_sub_vectors(batch, kept.codebooks.num_codebooks)
    score = record.get("map_learned", record["map"])
    index = CodeIndex(kept.codebooks, kept.codes)
    ways = [
        _Way(
            name, title, bits, "index", score, lambda: index.search(batch, TOP_K, query_norm="raw")
        )
    ]
    if kept.binary:
        packed = pack_signs(batch)
        engine, search = _hamming(packed, kept.codes)
        ways.append(_Way(name, title, bits, engine, score, search))
    if "map_float" in record and name == "phpq":
        gallery = kept.codebooks.decode(kept.codes)  # as many floats as the embeddings have
        ways.append(
            _Way(
                "float",
                f"float search, {gallery.shape[1]} numbers an image",
                bits,
                "float",
                record["map_float"],
                lambda: search_float(batch, gallery, top_k=TOP_K),
            )
        )
    return ways


def _hamming(queries: CodeArray, gallery: CodeArray) -> tuple[str, Callable[[], object]]:
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
