"""Grids on a dozen drawn birds, and records of cells that nobody ran, for tests of tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phpq.reproduce.grid import Cell, GridPlan, Subject, make_plan, open_subject
from phpq.reproduce.runner import GridResult
from phpq.reproduce.store import Store, record_head
from phpq.reproduce.work import WorkerContext

BIRDS = "plumage:species=4,images=6,test=2,size=32"
# Smaller than the settings for drawn birds: a training takes a fraction of a second.
TINY = (
    "training.batch_size=8",
    "training.images_per_class=2",
    "training.evaluate_every=1",
    "model.embedding_dim=48",
    "method.classifier_share=0",  # no training before the training
)


def tiny_subject(*settings: str, epochs: int = 2) -> Subject:
    """Return the subject of a grid on the birds."""
    return open_subject(BIRDS, settings=(*TINY, *settings), epochs=epochs)[0]


def tiny_plan(
    target: str = "table1",
    *methods: str,
    bits: tuple[int, ...] = (16,),
    seeds: tuple[int, ...] = (0,),
    subject: Subject | None = None,
) -> GridPlan:
    """Return a plan on the birds."""
    return make_plan(subject or tiny_subject(), target, bits=bits, seeds=seeds, methods=methods)


def cub_plan(target: str, *methods: str, bits: tuple[int, ...] = (16,)) -> GridPlan:
    """Return a plan that takes the birds for CUB, for the paper's numbers beside ours."""
    subject = replace(tiny_subject(), name="cub200")
    return tiny_plan(target, *methods, bits=bits, seeds=(0, 1, 2), subject=subject)


def tiny_context(plan: GridPlan, folder: Path) -> WorkerContext:
    """Return a context on the CPU."""
    store = Store(folder)
    store.prepare()
    return WorkerContext(store, plan.subject, "cpu", folder / "pixels", commit="abc")


def made_up_record(cell: Cell, plan: GridPlan, score: float, **more: Any) -> dict[str, Any]:
    """Return a record as `run_cell` writes it, with a MAP that is made up."""
    return {
        **record_head(cell, "done", plan.subject.weights),
        "epochs": 2,
        "map": score,
        "best_map": score + 1,
        "best_epoch": 1,
        "precision_at": {"1": score, "5": score / 2},
        "seconds": {"all": 10.0},
        "images_per_second": 100.0,
        "hardware": {"gpu": None, "cpu": "abacus", "cpu_cores": 2, "torch": "2", "python": "3"},
        "processes_at_once": 2,
        "commit": "abc",
    } | more


def made_up_records(plan: GridPlan, scores: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Return records for the rows (by name) that have a score; a seed s adds s to it."""
    cells = {cell.key: cell for cell in plan.cells}
    records = {}
    for (_, row, _, seed), key in plan.cell_keys.items():
        if row in scores:
            records[key] = made_up_record(cells[key], plan, scores[row] + seed)
    return records


GRID_METHODS = ("pq", "itq", "adsh", "pqn", "orthohash", "phpq")


@dataclass(frozen=True)
class Finished:
    """A grid that was run in this process."""

    plan: GridPlan
    context: WorkerContext
    result: GridResult
    lines: list[str]

    def planned(self, target: str) -> GridPlan:
        """Return the plan of another table or figure over the same cells."""
        return make_plan(self.plan.subject, target, bits=(16,), seeds=(0,), methods=GRID_METHODS)
