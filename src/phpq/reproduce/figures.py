"""Finished cells in; the figures of the paper's evaluation out, as data and as sections of a page.

Timings and pictures of hits use stored codes. Embedding the queries is the same work for all
searches and is not timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from phpq.codes import CodeArray, hamming_distances, normalise_sub_vectors, pack_signs
from phpq.data import Dataset, learned_part
from phpq.evaluation.timing import search_float, time_in_turns
from phpq.index import CodeIndex
from phpq.report.blocks import Block, Figure, Note, Section, Table
from phpq.report.pictures import HitRow, draw_hits, hit_rows, plot_curves, spread_queries
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import (
    RECIPE_TITLES,
    RECONSTRUCTED,
    SPEED_UP,
    TITLES,
    Row,
    printed_name,
)
from phpq.reproduce.store import KeptCodes, Store
from phpq.reproduce.tables import Records, commits_of

QUERIES, TOP_K, REPEATS = 1000, 10, 5
SHOWN_QUERIES, SHOWN_HITS = 6, 10
_PAIR = ("phpq", "pqn")
_BLOCK_DISTANCES = 1 << 22  # Hamming distances of one block of queries

Search = Callable[[], object]
Draw = Callable[..., bytes]  # as `plot_curves`
Made = tuple[dict[str, Any] | None, Section]  # the content of a JSON file, and what a page shows


def alpha_figure(table: Mapping[str, Any], *, draw: Draw = plot_curves) -> list[Figure]:
    """Draw MAP against alpha, of the table of that name; none without a number."""
    bits = max(table["bits"])
    curves: dict[str, dict[float, float]] = {}
    for row in table["rows"]:
        cell = row["cells"][str(bits)]
        alpha = float(printed_name(row["name"]).split("-")[1])
        if cell["mean"] is not None:
            recipe = "" if row["recipe"] == "ours" else f", {RECIPE_TITLES[row['recipe']]}"
            curves.setdefault(f"ours, {row['group']}{recipe}", {})[alpha] = cell["mean"]
        if cell["paper"] is not None:
            curves.setdefault("paper, partial attention", {})[alpha] = cell["paper"]
    if not curves:
        return []
    title, strong = f"MAP against alpha, {bits} bits", "ours, partial attention"
    image = draw(curves, title=title, labels=("alpha", "MAP, %"), strong=strong, wide=True)
    alt = f"MAP against alpha with partial and with full attention, {bits} bits"
    return [_figure(table, "alpha", image, alt)]


def precision_data(plan: GridPlan, records: Records) -> dict[str, Any]:
    """Return the precision of the first N hits of every method, by code length."""
    data, used = {}, []
    for bits in plan.bits:
        curves = {}
        for row in plan.rows["pn-curves"]:
            key = plan.cell_keys["pn-curves", row.name, bits, plan.seeds[0]]
            if key in records:
                record = records[key]
                used.append(record)
                values = record.get("precision_at_learned") or record["precision_at"]
                curves[row.figure_title] = {n: round(value, 2) for n, value in values.items()}
        if curves:
            data[str(bits)] = curves
    return {
        "figure": "pn-curves",
        "dataset": plan.subject.facts(),
        "seed": plan.seeds[0],
        "commits": commits_of(used),
        "precision_at": data,
    }


def precision_figures(content: Mapping[str, Any], *, draw: Draw = plot_curves) -> Section:
    """Draw what `precision_data` found, one figure per code length."""
    blocks = []
    for bits, found in content["precision_at"].items():
        curves = {title: {float(n): v for n, v in at.items()} for title, at in found.items()}
        labels = ("N", "precision, %")
        image = draw(curves, title=f"{bits} bits", labels=labels, strong="PHPQ", wide=True)
        alt = f"Precision of the first N hits against N, {bits} bits"
        blocks.append(_figure(content, f"pn-curves-{bits}", image, alt))
    return _figure_section(content, blocks)


def efficiency_figure(timed: Mapping[str, Any], *, draw: Draw = plot_curves) -> Section:
    """Show what `time_searches` measured."""
    rows, name = timed["rows"], timed["dataset"]["name"]
    bits = max((row["bits"] for row in rows), default=0)
    blocks: list[Block] = []
    # Of a method with a Hamming search only that one is drawn.
    hamming = {row["name"] for row in rows if row["engine"].startswith("hamming")}
    points = {
        row["title"]: {row["ms"]: row["map"]}
        for row in rows
        if row["bits"] == bits and (row["engine"] != "index" or row["name"] not in hamming)
    }
    if points:
        image = draw(
            points,
            title=f"Time of 1,000 queries against MAP, {bits} bits",
            labels=("milliseconds for 1,000 queries", "MAP, %"),
            strong="PHPQ",
            x_axis="log",
            wide=True,
        )
        alt = f"Milliseconds for 1,000 queries against MAP, {bits} bits"
        blocks.append(_figure(timed, "efficiency", image, alt))
    blocks.append(
        Table(
            ("method", "search", "bits", "MAP", "ms for 1,000 queries"),
            tuple((r["title"], r["engine"], r["bits"], r["map"], r["ms"]) for r in rows),
            caption=f"Top {timed['top_k']}, median of {timed['repeats']} repeats in turns, one "
            f"process on {timed['cpu_cores']} cores. Embedding the queries is left out.",
        )
    )
    ratios = [
        f"{length} bits: PHPQ answers {ratio:.1f} times as fast as float search."
        for length, ratio in timed["phpq_over_float"].items()
    ]
    if name in SPEED_UP:
        ratios.append(f"The paper says {SPEED_UP[name]:.2f} times.")
    blocks += [Note(tuple(ratios), as_list=True)] if ratios else []
    return _figure_section(timed, blocks)


def time_searches(
    plan: GridPlan, records: Records, store: Store, *, repeats: int = REPEATS
) -> dict[str, Any]:
    """Time 1,000 queries by every method and code length of the plan that has stored codes.

    Returns {"rows": [{name, title, bits, engine, map, ms}], ...}; float search over PHPQ's
    embeddings is a row for each code length.
    """
    rows: list[dict[str, Any]] = []
    searches: list[Search] = []
    for row in plan.rows["efficiency"]:
        for bits in plan.bits:
            key = plan.cell_keys["efficiency", row.name, bits, plan.seeds[0]]
            kept = store.read_codes(key) if key in records else None
            for facts, search in () if kept is None else _searches(row, records[key], kept):
                name = {"name": row.name, "title": row.figure_title, "bits": bits}
                rows.append(name | facts | {"map": round(facts["map"], 2)})
                searches.append(search)
    for row_facts, seconds in zip(rows, time_in_turns(searches, repeats), strict=True):
        row_facts["ms"] = round(1000 * seconds, 3)
    codes = {r["bits"]: r["ms"] for r in rows if r["name"] == "phpq" and r["engine"] == "index"}
    floats = {r["bits"]: r["ms"] for r in rows if r["engine"] == "float"}
    return {
        "figure": "efficiency",
        "dataset": plan.subject.facts(),
        "seed": plan.seeds[0],
        "commits": commits_of(records.values()),
        "queries": QUERIES,
        "top_k": TOP_K,
        "repeats": repeats,
        "cpu_cores": os.cpu_count(),
        "rows": rows,
        "phpq_over_float": {
            str(b): round(floats[b] / codes[b], 2) for b in codes if b in floats and codes[b]
        },
    }


def top10_figure(plan: GridPlan, records: Records, store: Store, dataset: Dataset | None) -> Made:
    """Show the picture of `draw_top10`, or why there is none."""
    drawn = draw_top10(plan, records, store, dataset)
    if drawn is None:
        why = "The images are not here." if dataset is None else "PHPQ or PQN is not run yet."
        return None, Section(TITLES["top10"], (Note((why,)),))
    picture, facts = drawn
    right = ", ".join(f"{name.upper()} {count}" for name, count in facts["right"].items())
    alt = f"Queries with the first ten hits of PHPQ and of PQN, {facts['bits']} bits"
    caption = f"Right hits of {facts['shown']}: {right}. Green with a tick: the class of the query."
    content = {"figure": "top10", "dataset": plan.subject.facts()} | facts
    lead = "One query of each of a few classes spread over all, chosen before hits were seen."
    blocks = (_figure(content, "top10", picture, alt), Note((caption,)))
    return content, Section(TITLES["top10"], blocks, lead=lead)


def draw_top10(
    plan: GridPlan, records: Records, store: Store, dataset: Dataset | None
) -> tuple[bytes, dict[str, Any]] | None:
    """Draw the first hits of PHPQ and PQN for the same queries.

    Returns a PNG, in which a query has a row of PHPQ and then one of PQN; and the facts shown: code
    length, right hits of each method, hits of each. None without images or codes of both.
    """
    bits = max(plan.bits)
    keys = {name: plan.cell_keys["top10", name, bits, plan.seeds[0]] for name in _PAIR}
    found = {name: store.read_codes(key) for name, key in keys.items() if key in records}
    kept = {name: codes for name, codes in found.items() if codes is not None}
    if dataset is None or len(kept) < len(_PAIR):
        return None
    images = learned_part(dataset, plan.subject.base.data)
    chosen = shared_queries(kept["phpq"], kept["pqn"])
    by_method = {name: _hits(kept[name], chosen, images) for name in _PAIR}
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
    """Pick queries that both have, of classes spread over all: positions in the test split."""
    shared, places, _ = np.intersect1d(first.query_rows, second.query_rows, return_indices=True)
    chosen = spread_queries(first.query_labels[places], SHOWN_QUERIES)
    return [int(shared[place]) for place in chosen]


def _hits(kept: KeptCodes, chosen: list[int], dataset: Dataset) -> tuple[HitRow, ...]:
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


def _searches(
    row: Row, record: dict[str, Any], kept: KeptCodes
) -> Iterator[tuple[dict[str, Any], Search]]:
    """Yield the searches of a cell's codes, each with its facts."""
    batch = kept.queries[np.arange(QUERIES) % len(kept.queries)]
    if kept.query_norm == "unit":  # the same work for all, and so not timed
        batch = normalise_sub_vectors(batch, kept.codebooks.num_codebooks)
    score = record.get("map_learned", record["map"])
    index = CodeIndex(kept.codebooks, kept.codes).build()
    yield {"engine": "index", "map": score}, lambda: index.search(batch, TOP_K, query_norm="raw")
    if kept.binary:
        engine, search = _hamming(pack_signs(batch), kept.codes)
        yield {"engine": engine, "map": score}, search
    if "map_float" in record and row.name == "phpq":
        gallery = kept.codebooks.decode(kept.codes)  # as many floats as the embeddings have
        title = f"float search, {gallery.shape[1]} numbers per image"
        facts = {"name": "float", "title": title, "engine": "float", "map": record["map_float"]}
        yield facts, lambda: search_float(batch, gallery, top_k=TOP_K)


def _hamming(queries: CodeArray, gallery: CodeArray) -> tuple[str, Search]:
    """Return the best Hamming search available: faiss, or population counts by numpy."""
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


def _figure(content: Mapping[str, Any], name: str, image: bytes, alt: str) -> Figure:
    file = f"figures/{name}-{content['dataset']['name']}.png"
    return Figure(image, alt=alt, wide=True, file=file)


def _figure_section(content: Mapping[str, Any], blocks: list[Any]) -> Section:
    lead = f"Seed {content['seed']}, last epoch. {RECONSTRUCTED}: our reconstruction."
    return Section(TITLES[content["figure"]], tuple(blocks), lead=lead)
