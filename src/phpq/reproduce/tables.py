"""Records of cells in, a table as plain data out: theirs, ours, the difference, and who is best.

The JSON file of a table is exactly this; the pages are made of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phpq.recipes import RECIPES
from phpq.reproduce.grid import Plan
from phpq.reproduce.paper import PaperTable, paper_table
from phpq.reproduce.rows import Row

Records = Mapping[str, dict[str, Any]]
BASE = "phpq"  # the row that variants are compared with
UNIT = "MAP in per cent over the whole gallery, ties in random order, last epoch"


@dataclass(frozen=True, slots=True)
class _Line:
    """A row as it is printed: a row of the plan, read in one of two ways."""

    name: str
    title: str
    row: Row
    value: str  # field of a record
    best: str
    database: str  # "encoded" or "learned"
    compared: bool  # whether the paper's number is about this


def build_table(plan: Plan, target: str, records: Records) -> dict[str, Any]:
    """Lay out one table.

    Args:
        plan: What was asked for.
        target: A table of it.
        records: Of finished cells, by key; cells that are missing leave gaps.
    """
    theirs = paper_table(plan.subject.name, target)
    lines = [line for row in plan.rows[target] for line in _lines(row)]
    rows = [_row(plan, target, line, records, theirs) for line in lines]
    used = [records[key] for key in _keys(plan, target) if key in records]
    starts = _starts(plan, target)
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
    if target in ("variants", "future"):
        _add_deltas(table["rows"], plan.bits)
    if target == "table1":
        table["standing"] = {str(bits): _standing(rows, str(bits)) for bits in plan.bits}
    return table | {
        "hardware": _distinct(record["hardware"] for record in used),
        "commits": sorted({record["commit"] for record in used if record["commit"]}),
        "cost": _cost([*used, *(records[key] for key in starts if key in records)]),
        "missing": sorted({key for key in _keys(plan, target) if key not in records}),
    }


def _keys(plan: Plan, target: str) -> list[str]:
    return [key for place, key in plan.places.items() if place[0] == target]


def _starts(plan: Plan, target: str) -> list[str]:
    """Return the keys of the features and backbones that cells of a table start from."""
    keys = set(_keys(plan, target))
    return sorted({cell.features for cell in plan.cells if cell.key in keys} - {""})


def _lines(row: Row) -> list[_Line]:
    recipe = RECIPES[row.method]
    plain = _Line(row.name, row.title, row, "map", "best_map", "encoded", True)
    if recipe.kind == "shallow":
        compared = row.name == row.method  # the paper's numbers fit fine-tuned features
        return [_Line(row.name, row.title, row, "map", "best_map", "encoded", compared)]
    if not recipe.learned_database:
        return [plain]
    learned = f"{row.title}, database learned from labels"
    encoded = f"{row.title}, database encoded"
    return [
        _Line(row.name, learned, row, "map_learned", "best_map_learned", "learned", True),
        _Line(f"{row.name}-encoded", encoded, row, "map", "best_map", "encoded", False),
    ]


def _row(
    plan: Plan, target: str, line: _Line, records: Records, theirs: PaperTable | None
) -> dict[str, Any]:
    recipe = RECIPES[line.row.method]
    cells = {}
    for bits in plan.bits:
        keys = [plan.places[target, line.row.name, bits, seed] for seed in plan.seeds]
        found = [records[key] for key in keys if key in records]
        cell = _cell([record for record in found if line.value in record], line)
        if theirs is not None and line.compared:
            cell["paper"] = theirs.meant(line.row.name, bits)
            if theirs.offset:
                cell["paper_printed"] = theirs.printed(line.row.name, bits)
            if cell["paper"] is not None and cell["mean"] is not None:
                cell["difference"] = round(cell["mean"] - cell["paper"], 2)
        cells[str(bits)] = cell
    shallow = recipe.kind == "shallow"
    return {
        "name": line.name,
        "title": line.title,
        "method": line.row.method,
        "group": line.row.group,
        "settings": list(line.row.settings),
        "features": ("imagenet" if line.name != line.row.method else "finetuned")
        if shallow
        else None,
        "database": line.database,
        "reconstruction": recipe.reconstruction,
        "cells": cells,
    }


def _cell(found: Sequence[dict[str, Any]], line: _Line) -> dict[str, Any]:
    """Return mean and deviation over the seeds that are there."""
    values = [record[line.value] for record in found]
    best = [record[line.best] for record in found]
    rates = [record["images_per_second"] for record in found if "images_per_second" in record]
    ranged = [record for record in found if f"{line.value}_range" in record]
    ranges = [record[f"{line.value}_range"] for record in ranged]
    return {
        "paper": None,
        "mean": _mean(values),
        "std": round(statistics.stdev(values), 2) if len(values) > 1 else None,
        "difference": None,
        "seeds": {str(record["seed"]): round(record[line.value], 2) for record in found},
        "range": [_mean(ends) for ends in zip(*ranges, strict=True)] if ranges else None,
        "range_seeds": [record["seed"] for record in ranged],
        "best_mean": _mean(best),
        "best_std": round(statistics.stdev(best), 2) if len(best) > 1 else None,
        "seconds": _mean([record["seconds"]["all"] for record in found]),
        "images_per_second": _mean(rates),
        "keys": [record["key"] for record in found],
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.mean(values), 2) if values else None


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


def _distinct(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


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
