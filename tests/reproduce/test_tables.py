from __future__ import annotations

import statistics

import pytest

from made_up_grids import cub_plan, made_up_records, tiny_plan
from phpq.reproduce.tables import build_table


def test_theirs_ours_and_the_difference() -> None:
    plan = cub_plan("table1", "dpsh", "phpq", bits=(16, 32))
    table = build_table(plan, "table1", made_up_records(plan, {"dpsh": 40.0, "phpq": 78.0}))
    rows = {row["name"]: row for row in table["rows"]}
    cell = rows["dpsh"]["cells"]["16"]
    assert cell["seeds"] == {"0": 40.0, "1": 41.0, "2": 42.0}
    assert (cell["mean"], cell["std"]) == (41.0, statistics.stdev([40, 41, 42]))
    assert (cell["paper"], cell["difference"]) == (34.97, 6.03)
    assert (cell["best_mean"], cell["seconds"]) == (42.0, 10.0)
    assert rows["phpq"]["cells"]["32"]["paper"] == 76.24
    assert table["cost"] == {
        "cells": 12,
        "cell_seconds": 120.0,
        "mean_seconds": 10.0,
        "longest_seconds": 10.0,
        "at_once": [2],
    }
    assert table["missing"] == []
    assert len(table["hardware"]) == 1


def test_who_is_best() -> None:
    plan = cub_plan("table1", "dpsh", "csq", "phpq")
    table = build_table(plan, "table1", made_up_records(plan, {"dpsh": 4, "phpq": 5, "csq": 6}))
    standing = table["standing"]["16"]
    assert (standing["best"], standing["best_map"]) == ("CSQ", 7)
    assert standing["phpq_is_best"] is False
    assert standing["beaten_by"] == [{"title": "CSQ", "map": 7}]
    table = build_table(plan, "table1", made_up_records(plan, {"dpsh": 4, "phpq": 5}))
    assert table["standing"]["16"]["phpq_is_best"] is True
    table = build_table(plan, "table1", made_up_records(plan, {"dpsh": 4}))
    assert table["standing"]["16"]["phpq_is_best"] is None


def test_what_is_missing_leaves_gaps() -> None:
    plan = cub_plan("table1", "dpsh", "phpq")
    records = made_up_records(plan, {"dpsh": 40.0})
    del records[plan.places["table1", "dpsh", 16, 1]]
    table = build_table(plan, "table1", records)
    assert len(table["missing"]) == 4
    rows = {row["name"]: row["cells"]["16"] for row in table["rows"]}
    assert rows["dpsh"]["mean"] == 41.0
    assert rows["phpq"]["mean"] is rows["phpq"]["difference"] is None
    assert rows["phpq"]["paper"] == 76.03


def test_both_databases_and_both_features() -> None:
    plan = cub_plan("table1", "adsh", "itq")
    records = made_up_records(plan, {"adsh": 40.0, "itq": 30.0, "itq-imagenet": 20.0})
    for record in records.values():
        if record["method"] == "adsh":
            record |= {"map_learned": 70.0, "best_map_learned": 71.0}
    rows = {row["name"]: row for row in build_table(plan, "table1", records)["rows"]}
    assert list(rows) == ["itq", "itq-imagenet", "adsh", "adsh-encoded"]
    assert rows["adsh"]["cells"]["16"]["mean"] == 70.0
    assert rows["adsh"]["database"] == "learned"
    assert rows["adsh-encoded"]["cells"]["16"]["mean"] == 41.0
    assert (rows["itq"]["features"], rows["itq-imagenet"]["features"]) == ("finetuned", "imagenet")
    # The paper's number stands beside the reading that it is about.
    paper = {name: row["cells"]["16"]["paper"] for name, row in rows.items()}
    assert paper == {"itq": 25.19, "itq-imagenet": None, "adsh": 42.93, "adsh-encoded": None}


def test_reconstructions_say_so() -> None:
    plan = cub_plan("table1", "cfh", "phpq")
    rows = {row["name"]: row for row in build_table(plan, "table1", {})["rows"]}
    assert "not public" in rows["cfh"]["reconstruction"]
    assert rows["phpq"]["reconstruction"] == ""


def test_variants_gain_or_lose_against_the_base() -> None:
    plan = cub_plan("variants")
    records = made_up_records(plan, {"phpq": 76.0, "gap": 75.5})
    del records[plan.places["variants", "phpq", 16, 2]]  # only seeds that both have count
    rows = {
        row["name"]: row["cells"]["16"] for row in build_table(plan, "variants", records)["rows"]
    }
    assert rows["gap"]["delta"] == -0.5
    assert rows["gap"]["paper_delta"] == -0.68
    assert rows["phpq"]["delta"] is None
    assert rows["gmp"]["delta"] is None
    assert rows["gmp"]["paper_delta"] == -2.33


def test_the_appendix_is_put_right() -> None:
    plan = cub_plan("alpha")
    table = build_table(plan, "alpha", made_up_records(plan, {"alpha-16": 76.0}))
    cell = next(row for row in table["rows"] if row["name"] == "alpha-16")["cells"]["16"]
    assert (cell["paper_printed"], cell["paper"]) == (79.03, 76.03)
    assert cell["difference"] == pytest.approx(77.0 - 76.03)
    assert "3.00" in table["paper"]["note"]


def test_a_data_set_that_the_paper_does_not_know() -> None:
    plan = tiny_plan("table1", "phpq")
    table = build_table(plan, "table1", made_up_records(plan, {"phpq": 50.0}))
    assert table["paper"] is None
    cell = table["rows"][0]["cells"]["16"]
    assert (cell["paper"], cell["std"]) == (None, None)
