from __future__ import annotations

import numpy as np
import pytest

from made_up_grids import Finished
from phpq.reproduce.kept import read_kept


@pytest.mark.parametrize(
    ("method", "binary", "norm"),
    [
        ("phpq", False, "unit"),
        ("pqn", False, None),
        ("pq", False, "raw"),
        ("itq", True, "raw"),
        ("orthohash", True, "raw"),
        ("adsh", True, "raw"),
    ],
)
def test_what_was_kept(finished: Finished, method: str, binary: bool, norm: str | None) -> None:
    key = finished.plan.places["table1", method, 16, 0]
    kept = read_kept(finished.plan, finished.place.store, key)
    assert kept is not None
    assert kept.binary is binary
    assert kept.codebooks.bits == 16
    assert kept.codes.shape == (24, 2)
    assert len(kept.queries) == len(kept.query_rows) == len(kept.query_labels) == 8
    assert kept.queries.dtype == np.float32
    if norm is not None:
        assert kept.query_norm == norm


def test_a_cell_that_kept_nothing(finished: Finished) -> None:
    plan = finished.planned("kappa")
    key = plan.places["kappa", "kappa-25", 16, 0]
    assert read_kept(plan, finished.place.store, key) is None
