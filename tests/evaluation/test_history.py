from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from phpq.evaluation.history import EpochScore, epoch_scores, read_rows


def test_last_and_best_come_together() -> None:
    rows = [
        {"epoch": 1, "loss": 3.0},
        {"epoch": 2, "map": 60.0},
        {"epoch": 4, "map": 71.5},
        {"epoch": 6, "map": 71.5},
        {"epoch": 7, "map": 70.0},
    ]
    scores = epoch_scores(rows)
    assert scores is not None
    assert scores.last == EpochScore(7, 70.0)
    assert scores.best == EpochScore(4, 71.5)  # the earlier of equals
    assert scores.evaluated == 4
    assert asdict(scores) == {
        "last": {"epoch": 7, "map": 70.0},
        "best": {"epoch": 4, "map": 71.5},
        "evaluated": 4,
    }
    assert epoch_scores(rows[:1]) is None


def test_rows_end_at_a_torn_line(tmp_path: Path) -> None:
    assert read_rows(tmp_path) == []
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1}\n{"epoch": 2, "map": 3.5}\n{"epoch": 3, "ma')
    assert read_rows(tmp_path) == [{"epoch": 1}, {"epoch": 2, "map": 3.5}]
    path.write_text('{"epoch": 1}\n[2]\n{"epoch": 3}\n')
    assert read_rows(tmp_path) == [{"epoch": 1}]
