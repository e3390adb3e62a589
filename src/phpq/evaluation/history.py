"""The `metrics.jsonl` of a run in, the MAP of its last and of its best evaluated epoch out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class EpochScore:
    """MAP after an epoch."""

    epoch: int  # from 1
    map: float  # in per cent


@dataclass(frozen=True, slots=True)
class EpochScores:
    """The last and the best evaluated epoch, always shown together.

    The best is selected on the queries that it is measured on, and so too optimistic.
    """

    last: EpochScore  # what the finished model scored
    best: EpochScore  # of all evaluated epochs; the earlier of equals
    evaluated: int  # epochs


def read_rows(run: Path) -> list[dict[str, Any]]:
    """Read the rows of `metrics.jsonl`, one per epoch, up to the first damaged line."""
    rows: list[dict[str, Any]] = []
    path = run / METRICS
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
            break
        rows.append(row)
    return rows


def epoch_scores(rows: Sequence[dict[str, Any]]) -> EpochScores | None:
    """Pick the last and the best epoch of the rows that have a "map"; None if there is none."""
    scores = [EpochScore(row["epoch"], float(row["map"])) for row in rows if "map" in row]
    if not scores:
        return None
    best = max(scores, key=lambda score: (score.map, -score.epoch))
    return EpochScores(last=scores[-1], best=best, evaluated=len(scores))
