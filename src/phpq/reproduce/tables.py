"""Records of cells in, a table as plain data out: theirs, ours, the difference, and the best row.

This is the content of a table's JSON file, from which pages are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phpq.config import RECIPES
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import CLAIMS, PAPER, TABLES, Row, printed_name

Records = Mapping[str, dict[str, Any]]
BASE = "phpq"  # the row of a table of methods that the others are compared with
SURE = 2.0  # standard errors by which a gain must differ from zero
UNIT = "MAP in per cent over the whole gallery, ties in random order, last epoch"


def build_table(plan: GridPlan, target: str, records: Records) -> dict[str, Any]:
    """Lay out one table of a plan; cells without a record leave gaps."""
    theirs = PAPER.get(plan.subject.name, {}).get(target)
    rows = [
        _row(plan, target, row, records, learned)
        for row in plan.rows[target]
        for learned in ((True, False) if RECIPES[row.method].learned_database else (None,))
    ]
    keys = [key for place, key in plan.cell_keys.items() if place[0] == target]
    used = [records[key] for key in keys if key in records]
    # The cost includes features and backbones that cells of the table start from.
    starts = sorted({cell.start for cell in plan.cells if cell.key in set(keys)} - {""})
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
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        mine = [row for row in rows if row["recipe"] == recipe]
        if target in TABLES and target not in ("table1", "headline"):
            _add_deltas(mine, plan.bases.get((target, recipe)), plan.bits)
    if target in CLAIMS:
        table["claims"] = _claims(target, rows)
    if target == "table1":
        table["standing"] = {str(bits): _standing(rows, str(bits)) for bits in plan.bits}
    return table | {
        **made_by(used),
        "cost": _cost([*used, *(records[key] for key in starts if key in records)]),
        "missing": sorted({key for key in keys if key not in records}),
    }


def made_by(used: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the machines and the commits of some records."""
    machines = [record["hardware"] for record in used]
    return {
        "hardware": [one for n, one in enumerate(machines) if one not in machines[:n]],
        "commits": commits_of(used),
    }


def commits_of(used: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the commits of some records, as far as they are known."""
    return sorted({record["commit"] for record in used if record["commit"]})


def _row(
    plan: GridPlan, target: str, row: Row, records: Records, learned: bool | None
) -> dict[str, Any]:
    """Return a row of the table.

    A method that learns its database from labels has two: `learned` True is that of the learned
    database, False of an encoded one. For other methods it is None.
    """
    recipe = RECIPES[row.method]
    name, title = row.name, row.title
    if learned is not None:
        title += ", database learned from labels" if learned else ", database encoded"
        name += "" if learned else "-encoded"
    shallow, tuned = recipe.kind == "shallow", row.name == row.method
    value = "map_float" if row.searched == "float" else "map_learned" if learned else "map"
    theirs = PAPER.get(plan.subject.name, {}).get(target)
    if learned is False or (shallow and not tuned):
        theirs = None  # the paper's are those of learned databases and fine-tuned features
    cells = {}
    for bits in plan.bits:
        keys = [plan.cell_keys[target, row.name, bits, seed] for seed in plan.seeds]
        found = [records[key] for key in keys if key in records]
        cell = summarise(found, value)
        if theirs is not None:
            cell["paper"] = theirs.meant(row.printed, bits)
            if theirs.offset:
                cell["paper_printed"] = theirs.printed(row.printed, bits)
            if cell["paper"] is not None and cell["mean"] is not None:
                cell["difference"] = round(cell["mean"] - cell["paper"], 2)
        cells[str(bits)] = cell
    return {
        "name": name,
        "title": title,
        "method": row.method,
        "group": row.group,
        "recipe": row.recipe,
        "searched": row.searched,
        "settings": list(row.settings),
        "features": _features(row) if shallow else None,
        "database": "learned" if learned else "encoded",
        "reconstruction": recipe.reconstruction,
        "cells": cells,
    }


def _features(row: Row) -> str:
    """Return which features a shallow method codes: those of its recipe, or the row's own."""
    texts = (*RECIPES[row.method].settings, *row.settings)
    return [t.partition("=")[2] for t in texts if t.startswith("method.features=")][-1]


def summarise(records: Sequence[dict[str, Any]], value: str) -> dict[str, Any]:
    """Return means and deviations over finished seeds; `value` is "map" or another MAP."""
    found = [record for record in records if value in record]
    values = [record[value] for record in found]
    # Earlier epochs are measured by codes only.
    best = [record.get(f"best_{value}", record[value]) for record in found]
    first = {"map": "precision_at", "map_learned": "precision_at_learned"}.get(value)
    hits = [record[first]["1"] for record in found if first in record]
    floats = [record for record in found if "map_float" in record and value != "map_learned"]
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
        "p1": _mean(hits),
        "float": _mean([record["map_float"] for record in floats]),
        "p1_float": _mean([record["p1_float"] for record in floats if "p1_float" in record]),
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


def _add_deltas(rows: list[dict[str, Any]], base: str | None, bits: Sequence[int]) -> None:
    """Add the gain of each row over the base row, over the seeds that both have."""
    plain = next((row for row in rows if row["name"] == base), None)
    for row in rows:
        for length in map(str, bits):
            cell = row["cells"][length]
            known = {} if plain is None or row is plain else plain["cells"][length]
            gains = list(_gains(cell, known).values()) if known else []
            cell["delta"], cell["delta_std"] = _mean(gains), _deviation(gains)
            theirs = _paper_gain(cell, known) if known else None
            cell["paper_delta"] = None if theirs is None else round(theirs, 2)


def _gains(cell: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Return the gain of a cell over another, for each seed that both have."""
    shared = sorted(set(cell["seeds"]) & set(other["seeds"]))
    return {seed: cell["seeds"][seed] - other["seeds"][seed] for seed in shared}


def _paper_gain(cell: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    known: tuple[float | None, float | None] = cell["paper"], other["paper"]
    return None if known[0] is None or known[1] is None else known[0] - known[1]


def _claims(target: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge each claim of the paper by our numbers, recipe by recipe."""
    found = []
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        cells = {printed_name(r["name"]): r["cells"] for r in rows if r["recipe"] == recipe}
        for claim in CLAIMS[target]:
            if claim.better in cells and claim.worse in cells:
                about = {"claim": claim.text, "recipe": recipe}
                found.append(about | _judged(cells[claim.better], cells[claim.worse]))
    # No claim where the paper's own numbers of a data set contradict it.
    return [one for one in found if one["paper_gain"] is None or one["paper_gain"] > 0]


def _judged(better: Mapping[str, Any], worse: Mapping[str, Any]) -> dict[str, Any]:
    """Judge two rows, given their cells by code length.

    A seed counts once, by its mean gain over the code lengths that both rows have, since these are
    not independent.
    """
    theirs = [_paper_gain(better[bits], worse[bits]) for bits in better]
    by_seed = dict[str, list[float]]()
    for bits in better:
        for seed, gain in _gains(better[bits], worse[bits]).items():
            by_seed.setdefault(seed, []).append(gain)
    gains = [statistics.mean(one) for one in by_seed.values()]
    return {
        "gain": _mean(gains),
        "error": _error(gains),
        "seeds": list(by_seed),
        "paper_gain": _mean([gain for gain in theirs if gain is not None]),
        "verdict": verdict(gains),
    }


def verdict(gains: Sequence[float]) -> str:
    """Judge a claim by the gain of each seed: it must differ from zero by `SURE` errors."""
    if len(gains) < 2:
        return "undecided"
    mean, error = statistics.mean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    if abs(mean) <= SURE * error:
        return "undecided"
    return "confirmed" if mean > 0 else "refuted"


def _error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean."""
    return round(statistics.stdev(values) / len(values) ** 0.5, 2) if len(values) > 1 else None


def _standing(rows: Sequence[dict[str, Any]], bits: str) -> dict[str, Any]:
    """Return the best row at a code length, and those that beat PHPQ."""
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
    """Return the cost of the cells of a table, each counted once."""
    once = {record["key"]: record for record in used}.values()
    seconds = [record["seconds"]["all"] for record in once]
    return {
        "cells": len(seconds),
        "cell_seconds": round(sum(seconds), 1),
        "mean_seconds": _mean(seconds),
        "longest_seconds": max(seconds, default=None),
        "at_once": sorted({record["processes_at_once"] for record in once}),
    }
