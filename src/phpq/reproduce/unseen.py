"""The table of unseen classes: what a cell measures, and the page of all of them.

Every method learns the first half of the classes and is measured on the other half (`evaluation.
unseen`): by its own codes, and by float search unless codes decode to the embeddings themselves.
PHPQ is also measured by codebooks that the gallery owns, with and without its labels.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from phpq.codes import FloatArray, normalise_sub_vectors
from phpq.config import RECIPES, RunConfig
from phpq.evaluation.search import ClassSplit, SearchScore, SearchSetup
from phpq.evaluation.unseen import (
    FIVE,
    OPEN,
    UNSEEN,
    evaluate_unseen,
    leave_one_out,
    open_protocols,
)
from phpq.report import blocks
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import RECONSTRUCTED, TITLES, Row
from phpq.reproduce.store import Arrays
from phpq.reproduce.tables import made_by

# Heading -> protocol and value of a score.
COLUMNS = {
    "unseen: R@1": (UNSEEN, "r1"),
    "MAP@R": (UNSEEN, "map_r"),
    "MAP": (UNSEEN, "map"),
    **{f"{protocol}: MAP": (protocol, "map") for protocol in OPEN},
    "named by five": (FIVE, "accuracy"),
}
# Other searches of PHPQ, over its general embedding: names of `evaluate_unseen` -> titles.
_WAYS = {"float": "general floats", "codes": "codes of the gallery's own"}
OWN, FLOATS = "its own codes", "its own floats"
_PARTS = ("train", "test", "new")
_LEARNED = {
    "all": "",
    "last": " The last stage of the backbone and the head learn.",
    "head": " The backbone is frozen; the heads learn.",
}


def measure_unseen(
    config: RunConfig,
    method: Any,
    arrays: Arrays,
    *,
    features: Arrays | None = None,
    general: Arrays | None = None,
) -> list[dict[str, Any]]:
    """Measure one training; returns `SearchScore`s as plain data.

    `arrays` are those of `work._embed`. Float search uses `features` of the same images in place of
    embeddings that are signs; codebooks of the gallery use the `general` embeddings of PHPQ, or its
    learned ones.
    """
    labels = np.concatenate([arrays[f"{name}_labels"] for name in _PARTS])
    sizes = [len(arrays[f"{name}_labels"]) for name in _PARTS]
    learned = np.repeat([False, True], sizes[:2])
    split = ClassSplit(
        np.repeat([False, False, True], sizes), np.concatenate([learned, arrays["new_queries"]])
    )
    rows, books = _concatenated(arrays), method.export()
    floats = rows if features is None else _concatenated(features)
    sub_vectors = books.num_codebooks if books.unit else 1
    setups = [SearchSetup(OWN, rows, lambda *_: books, norm=method.query_norm)]
    if features is not None or not np.array_equal(books.decode(books.encode(rows)), rows):
        setups.append(SearchSetup(FLOATS, normalise_sub_vectors(floats, sub_vectors)))
    scores: list[SearchScore] = []
    for setup in setups:
        scores += [leave_one_out(setup, labels, split), *open_protocols(setup, labels, split)]
    if config.method.name == "phpq":
        space = setups[-1].embeddings if general is None else _concatenated(general)
        bits = (config.quantizer.bits,)
        scores += evaluate_unseen(space, labels, split, bits=bits, details=False).scores
    return [asdict(score) for score in scores]


def _concatenated(arrays: Arrays) -> FloatArray:
    rows: FloatArray = np.concatenate([arrays[name] for name in _PARTS]).astype(np.float32)
    return rows


def unseen_table(plan: GridPlan, records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds, a row for each method and search."""
    rows: list[dict[str, Any]] = []
    used: list[dict[str, Any]] = []
    missing: list[str] = []
    bits = max(plan.bits)
    for row in plan.rows["unseen"]:
        keys = [plan.cell_keys["unseen", row.name, bits, seed] for seed in plan.seeds]
        found = [records[key] for key in keys if key in records]
        missing += [key for key in keys if key not in records]
        used += found
        ways = dict.fromkeys((s["way"], s["labels"]) for one in found for s in one["unseen"])
        rows += [_row(row, *way, [one["unseen"] for one in found]) for way in ways]
    return {
        "table": "unseen",
        "dataset": plan.subject.facts(),
        "trainable": plan.subject.base.training.trainable,
        "bits": bits,
        "seeds": list(plan.seeds),
        "rows": rows,
        "settings": list(plan.subject.settings),
        **made_by(used),
        "missing": missing,
    }


def _row(
    row: Row, way: str, labels: str, measured: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the means of one search over seeds, whose scores are `measured`."""

    def mean(protocol: str, value: str) -> float | None:
        values = [
            score["values"][value]
            for scores in measured
            for score in scores
            if (score["protocol"], score["way"], score["labels"]) == (protocol, way, labels)
        ]
        return round(statistics.mean(values), 2) if values else None

    return {
        "name": row.name,
        "title": row.title,
        "way": way,
        "labels": labels,
        "reconstruction": RECIPES[row.method].reconstruction,
        "values": {heading: mean(*place) for heading, place in COLUMNS.items()},
    }


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds))
    return f"mean of seeds {listed}" if len(seeds) > 1 else f"seed {listed}"


def unseen_section(table: Mapping[str, Any]) -> blocks.Section:
    """Show a table of `unseen_table`."""
    marks = {True: f" {RECONSTRUCTED}", False: ""}
    shown = blocks.Table(
        columns=("method", "search over", "labels", *COLUMNS),
        rows=tuple(
            (
                row["title"] + marks[bool(row["reconstruction"])],
                _WAYS.get(row["way"], row["way"]),
                row["labels"],
                *row["values"].values(),
            )
            for row in table["rows"]
        ),
        caption=f"In per cent, {_seeds(table['seeds'])}; codes of "
        f"{table['bits']} bits. The gallery's labels are used only where the row says so. "
        f"{RECONSTRUCTED}: our reconstruction.",
    )
    content: list[blocks.Block] = [shown]
    if table["missing"]:
        content.append(blocks.Note((f"{len(table['missing'])} cells are not run yet.",)))
    lead = (
        f"{table['dataset']['name']}: the first half of the classes is learned, the other half is "
        "searched. Unseen: its images ask among each other, each without itself. A@B: queries of A "
        f"apart from a gallery of B.{_LEARNED[table['trainable']]}"
    )
    return blocks.Section(TITLES["unseen"], tuple(content), lead=lead)
