"""Records of cells in, a table as plain data out: theirs, ours, the difference, and who is best.

The JSON file of a table is exactly this; the pages are made of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from phpq.config import RECIPES
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import PAPER, Row

Records = Mapping[str, dict[str, Any]]
BASE = "phpq"  # the row that variants are compared with
UNIT = "MAP in per cent over the whole gallery, ties in random order, last epoch"


def build_table(plan: GridPlan, target: str, records: Records) -> dict[str, Any]:
    """Lay out one table of a plan; cells without a record leave gaps."""
    theirs = PAPER.get(plan.subject.name, {}).get(target)
    rows = [
        _row(plan, target, row, records, learned)
        for row in plan.rows[target]
        for learned in ((True, False) if RECIPES[row.method].learned_database else (None,))
    ]
    keys = [key for place, key in plan.places.items() if place[0] == target]
    used = [records[key] for key in keys if key in records]
    # Features and backbones that cells of the table start from count as cost, too.
    starts = sorted({cell.features for cell in plan.cells if cell.key in set(keys)} - {""})
    table: dict[str, Any] = {
        "table": target,
        "dataset": plan.subject.facts(),
        "unit": UNIT,
        "paper": None if theirs is None else {"source": theirs.source, "note": theirs.note},
        "bits": list(plan.bits),
        "seeds": list(plan.seeds),
        "epochs": sorted({record["epochs"] for record in used if record["kind"] == "training"}),
        "rows": rows,
    }
    if target == "headline":
        _add_beside(table["rows"], records)
    if target in ("variants", "future"):
        _add_deltas(table["rows"], plan.bits)
    if target == "table1":
        table["standing"] = {str(bits): _standing(rows, str(bits)) for bits in plan.bits}
    machines = [record["hardware"] for record in used]
    return table | {
        "hardware": [one for n, one in enumerate(machines) if one not in machines[:n]],
        "commits": sorted({record["commit"] for record in used if record["commit"]}),
        "cost": _cost([*used, *(records[key] for key in starts if key in records)]),
        "missing": sorted({key for key in keys if key not in records}),
    }


def _row(
    plan: GridPlan, target: str, row: Row, records: Records, learned: bool | None
) -> dict[str, Any]:
    """Return a row as it is printed.

    A method that learns its database from labels has two: with `learned` True the figures of that
    database are read, with False those of an encoded one. For other methods it is None.
    """
    recipe = RECIPES[row.method]
    name, title = row.name, row.title
    if learned is not None:
        title += ", database learned from labels" if learned else ", database encoded"
        name += "" if learned else "-encoded"
    shallow, tuned = recipe.kind == "shallow", row.name == row.method
    theirs = PAPER.get(plan.subject.name, {}).get(target)
    if learned is False or (shallow and not tuned):
        theirs = None  # the paper's numbers are about learned databases and fine-tuned features
    cells = {}
    for bits in plan.bits:
        keys = [plan.places[target, row.name, bits, seed] for seed in plan.seeds]
        found = [records[key] for key in keys if key in records]
        cell = summarise(found, "map_learned" if learned else "map")
        if theirs is not None:
            cell["paper"] = theirs.meant(row.name, bits)
            if theirs.offset:
                cell["paper_printed"] = theirs.printed(row.name, bits)
            if cell["paper"] is not None and cell["mean"] is not None:
                cell["difference"] = round(cell["mean"] - cell["paper"], 2)
        cells[str(bits)] = cell
    return {
        "name": name,
        "title": title,
        "method": row.method,
        "group": row.group,
        "settings": list(row.settings),
        "features": ("finetuned" if tuned else "imagenet") if shallow else None,
        "database": "learned" if learned else "encoded",
        "reconstruction": recipe.reconstruction,
        "cells": cells,
    }


def summarise(records: Sequence[dict[str, Any]], value: str) -> dict[str, Any]:
    """Return mean and deviation over the seeds that are there; `value` is "map" or another MAP."""
    found = [record for record in records if value in record]
    values = [record[value] for record in found]
    best = [record[f"best_{value}"] for record in found]
    rates = [record["images_per_second"] for record in found if "images_per_second" in record]
    ranged = [record for record in found if f"{value}_range" in record]
    ranges = [record[f"{value}_range"] for record in ranged]
    return {
        "paper": None,
        "mean": _mean(values),
        "std": _deviation(values),
        "difference": None,
        "seeds": {str(record["seed"]): round(record[value], 2) for record in found},
        "range": [_mean(ends) for ends in zip(*ranges, strict=True)] if ranges else None,
        "range_seeds": [record["seed"] for record in ranged],
        "best_mean": _mean(best),
        "best_std": _deviation(best),
        "seconds": _mean([record["seconds"]["all"] for record in found]),
        "images_per_second": _mean(rates),
        "keys": [record["key"] for record in found],
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.mean(values), 2) if values else None


def _deviation(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values), 2) if len(values) > 1 else None


def _add_beside(rows: list[dict[str, Any]], records: Records) -> None:
    """Add what stands beside MAP: P@1 of the codes, and both of float search."""
    for cell in [cell for row in rows for cell in row["cells"].values()]:
        found = [records[key] for key in cell["keys"]]
        cell["precision_at_1"] = _mean([record["precision_at"]["1"] for record in found])
        for name in ("map_float", "precision_at_1_float"):
            cell[name] = _mean([record[name] for record in found if name in record])


def _add_deltas(rows: list[dict[str, Any]], bits: Sequence[int]) -> None:
    """Add what each row gains or loses against the base row, over the seeds that both have."""
    base = next(row for row in rows if row["name"] == BASE)
    for row in rows:
        for length in map(str, bits):
            cell, known = row["cells"][length], base["cells"][length]
            shared = sorted(set(cell["seeds"]) & set(known["seeds"]))
            gains = [cell["seeds"][seed] - known["seeds"][seed] for seed in shared]
            cell["delta"] = None if row is base else _mean(gains)
            printed = cell["paper"] is not None and known["paper"] is not None and row is not base
            cell["paper_delta"] = round(cell["paper"] - known["paper"], 2) if printed else None


def _standing(rows: Sequence[dict[str, Any]], bits: str) -> dict[str, Any]:
    """Say who is best at a code length, and who beats PHPQ."""
    known = {row["title"]: row["cells"][bits]["mean"] for row in rows}
    ranked = sorted(((v, t) for t, v in known.items() if v is not None), reverse=True)
    ours = next((row["cells"][bits]["mean"] for row in rows if row["name"] == BASE), None)
    above = [] if ours is None else [(value, title) for value, title in ranked if value > ours]
    return {
        "best": ranked[0][1] if ranked else None,
        "best_map": ranked[0][0] if ranked else None,
        "phpq": ours,
        "phpq_is_best": None if ours is None else not above,
        "beaten_by": [{"title": title, "map": value} for value, title in above],
    }


def _cost(used: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the cells of the table took, each once, by itself."""
    once = {record["key"]: record for record in used}.values()
    seconds = [record["seconds"]["all"] for record in once]
    return {
        "cells": len(seconds),
        "cell_seconds": round(sum(seconds), 1),
        "mean_seconds": _mean(seconds),
        "longest_seconds": max(seconds, default=None),
        "at_once": sorted({record["processes_at_once"] for record in once}),
    }
