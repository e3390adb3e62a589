"""One small grid, run once, for all tests that look at finished cells."""

from __future__ import annotations

import pytest

from made_up_grids import GRID_METHODS, Finished, tiny_context, tiny_plan, tiny_subject
from phpq.reproduce.runner import run_plan


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    plan = tiny_plan("table1", *GRID_METHODS, subject=tiny_subject(epochs=2))
    context = tiny_context(plan, tmp_path_factory.mktemp("grid"))
    lines: list[str] = []
    result = run_plan(plan, context, processes=0, say=lines.append)
    assert not result.failed
    return Finished(plan, context, result, lines)
