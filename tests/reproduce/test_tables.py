from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from made_up_grids import cub_plan, made_up_records, tiny_plan, tiny_subject
from phpq.reproduce.grid import make_plan
from phpq.reproduce.pages import claim_lines
from phpq.reproduce.paper import EXTRA_ROWS
from phpq.reproduce.tables import build_table, verdict


def test_theirs_ours_and_the_difference() -> None:
    plan = cub_plan("table1", "dpsh", "csq", bits=(16, 32))
    table = build_table(plan, "table1", made_up_records(plan, {"dpsh": 40.0, "csq": 78.0}))
    rows = {row["name"]: row for row in table["rows"]}
    cell = rows["dpsh"]["cells"]["16"]
    assert cell["seeds"] == {"0": 40.0, "1": 41.0, "2": 42.0}
    assert (cell["mean"], cell["std"]) == (41.0, statistics.stdev([40, 41, 42]))
    assert (cell["paper"], cell["difference"]) == (34.97, 6.03)
    assert (cell["best_mean"], cell["seconds"]) == (42.0, 10.0)
    assert rows["dpsh"]["cells"]["32"]["paper"] == 43.01
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
    plan = cub_plan("table1", "dpsh", "dth")
    records = made_up_records(plan, {"dpsh": 40.0})
    del records[plan.cell_keys["table1", "dpsh", 16, 1]]
    table = build_table(plan, "table1", records)
    assert len(table["missing"]) == 4
    rows = {row["name"]: row["cells"]["16"] for row in table["rows"]}
    assert rows["dpsh"]["mean"] == 41.0
    assert rows["dth"]["mean"] is rows["dth"]["difference"] is None
    assert rows["dth"]["paper"] == 46.41


def test_both_databases_and_both_features() -> None:
    plan = cub_plan("table1", "adsh", "itq")
    records = made_up_records(plan, {"adsh": 40.0, "itq": 30.0, "itq-imagenet": 20.0})
    for record in records.values():
        if record["method"] == "adsh":
            record |= {"map_learned": 70.0, "best_map_learned": 71.0}
    rows = {row["name"]: row for row in build_table(plan, "table1", records)["rows"]}
    assert list(rows) == ["itq", "itq-finetuned", "itq-imagenet", "adsh", "adsh-encoded"]
    assert rows["adsh"]["cells"]["16"]["mean"] == 70.0
    assert rows["adsh"]["database"] == "learned"
    assert rows["adsh-encoded"]["cells"]["16"]["mean"] == 41.0
    kinds = [rows[name]["features"] for name in ("itq", "itq-finetuned", "itq-imagenet")]
    assert kinds == ["discriminant", "finetuned", "imagenet"]
    # The paper's number stands beside the reading that it is about.
    paper = {name: row["cells"]["16"]["paper"] for name, row in rows.items()}
    assert paper == {
        "itq": 25.19,
        "itq-finetuned": None,
        "itq-imagenet": None,
        "adsh": 42.93,
        "adsh-encoded": None,
    }


def test_reconstructions_say_so() -> None:
    plan = cub_plan("table1", "cfh", "phpq")
    rows = {row["name"]: row for row in build_table(plan, "table1", {})["rows"]}
    assert "not public" in rows["cfh"]["reconstruction"]
    assert rows["phpq"]["reconstruction"] == ""


def test_variants_gain_or_lose_against_the_base() -> None:
    plan = cub_plan("variants")
    records = made_up_records(plan, {"phpq": 76.0, "gap": 75.5})
    del records[plan.cell_keys["variants", "phpq", 16, 2]]  # only seeds that both have count
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


def test_both_recipes_have_a_base_of_their_own() -> None:
    subject = replace(tiny_subject(), name="cub200")
    plan = make_plan(subject, "alpha", bits=(16,), seeds=(0, 1), recipe="both")
    base = {"ours": "alpha-4", "paper": "alpha-16@paper"}
    assert {recipe: plan.bases["alpha", recipe] for recipe in base} == base
    scores = {"alpha-4": 80.0, "alpha-16": 70.0, "alpha-16@paper": 40.0, "alpha-4@paper": 41.5}
    rows = {
        row["name"]: row["cells"]["16"]
        for row in build_table(plan, "alpha", made_up_records(plan, scores))["rows"]
    }
    assert rows["alpha-4"]["delta"] is rows["alpha-16@paper"]["delta"] is None
    assert rows["alpha-16"]["delta"] == -10.0
    assert rows["alpha-4@paper"]["delta"] == 1.5
    # The paper's numbers are about its own recipe and stand beside ours, too.
    assert rows["alpha-16@paper"]["paper"] == rows["alpha-16"]["paper"] == 76.03


def test_gains_have_the_deviation_of_paired_differences() -> None:
    plan = cub_plan("variants")
    records = made_up_records(plan, {"phpq": 76.0, "gap": 70.0})
    for seed, score in enumerate((70.0, 72.0, 71.0)):  # the base: 76, 77, 78
        records[plan.cell_keys["variants", "gap", 16, seed]]["map"] = score
    cell = next(
        row["cells"]["16"]
        for row in build_table(plan, "variants", records)["rows"]
        if row["name"] == "gap"
    )
    assert cell["delta"] == -6.0
    assert cell["delta_std"] == pytest.approx(statistics.stdev([-6, -5, -7]))


def test_claims_are_judged_seed_by_seed() -> None:
    plan = cub_plan("variants", bits=(16, 32))
    records = made_up_records(plan, {"phpq": 76.0, "gap": 75.0, "last-fc": 77.0, "gmp": 76.0})
    # Every seed gains the same over GAP and loses the same to the last layer; GMP goes both ways.
    for seed, score in enumerate((75.0, 78.0, 79.0)):
        for bits in (16, 32):
            records[plan.cell_keys["variants", "gmp", bits, seed]]["map"] = score
    table = build_table(plan, "variants", records)
    found = {one["claim"]: one for one in table["claims"]}
    assert len(found) == len(table["claims"]) == 6
    expected = {
        "over GAP": ("confirmed", 1.0, 0.0, 0.57),
        "over the last layer alone": ("refuted", -1.0, 0.0, 1.8),
        "over GMP": ("undecided", -0.33, 0.67, 2.21),
    }
    for name, (judged, gain, error, theirs) in expected.items():
        one = found[f"the pyramid with hybrid pooling helps ({name})"]
        assert (one["verdict"], one["gain"], one["error"]) == (judged, gain, error)
        assert one["paper_gain"] == pytest.approx(theirs, abs=0.08)
        assert one["seeds"] == ["0", "1", "2"]
    assert found["partial attention helps"]["verdict"] == "undecided"
    assert found["partial attention helps"]["gain"] is None
    assert claim_lines(table)[1].startswith(
        "Our recipe: the pyramid with hybrid pooling helps (over GAP): confirmed, +1.00 "
        "\N{PLUS-MINUS SIGN} 0.00 points over 3 seeds (the paper: +0.6"
    )
    assert "2 standard errors" in claim_lines(table)[-1]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([], "undecided"),
        ([5.0], "undecided"),  # one seed tells nothing about chance
        ([1.0, 1.1], "confirmed"),
        ([-1.0, -1.1], "refuted"),
        ([1.0, 3.0], "undecided"),  # exactly two standard errors
        ([0.0, 0.0, 0.0], "undecided"),
    ],
)
def test_a_gain_must_exceed_two_standard_errors(gains: list[float], expected: str) -> None:
    assert verdict(gains) == expected


def test_a_claim_that_the_paper_does_not_make_of_a_data_set_is_left_out() -> None:
    subject = replace(tiny_subject(), name="dogs120")
    plan = tiny_plan("tau", seeds=(0, 1), subject=subject)
    table = build_table(plan, "tau", made_up_records(plan, {"tau-0.5": 80.0, "tau-0.25": 81.0}))
    assert [one["claim"] for one in table["claims"]] == ["tau = 0.5 is better than 1"]


def test_float_rows_are_of_one_training_for_all_lengths() -> None:
    plan = cub_plan("table1", "phpq", "phpq-float", bits=(16, 32))
    keys = {plan.cell_keys["table1", "phpq-float", bits, 0] for bits in (16, 32)}
    assert len(keys) == 1
    records = made_up_records(plan, {"phpq-float": 3.0, "phpq": 78.0})
    records[keys.pop()] |= {"map_float": 77.0, "p1_float": 79.0}
    rows = {row["name"]: row for row in build_table(plan, "table1", records)["rows"]}
    for bits in ("16", "32"):
        cell = rows["phpq-float"]["cells"][bits]
        assert (cell["mean"], cell["p1"], cell["p1_float"]) == (77.0, None, 79.0)
        assert cell["seeds"] == {"0": 77.0}  # the others have no float search
    assert rows["phpq"]["cells"]["16"]["p1"] == 79.0
    assert rows["phpq"]["cells"]["16"]["float"] is None


def test_the_recipe_of_the_paper_stands_beside_the_papers_numbers() -> None:
    plan = cub_plan("table1", "phpq", *EXTRA_ROWS)
    table = build_table(plan, "table1", made_up_records(plan, {"phpq@paper": 11.0}))
    rows = {row["name"]: row for row in table["rows"]}
    assert set(rows) == {*EXTRA_ROWS, "phpq"}
    cell = rows["phpq@paper"]["cells"]["16"]
    assert (cell["mean"], cell["paper"], cell["difference"]) == (12.0, 76.03, -64.03)
    assert rows["phpq-without-z"]["cells"]["16"]["paper"] is None
