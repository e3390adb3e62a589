from __future__ import annotations

from typing import Any

from made_up_grids import cub_plan, made_up_records, tiny_plan
from phpq.report.blocks import Note, Section, Table
from phpq.reproduce.rows import FIGURES, TABLES
from phpq.reproduce.sections import TITLES, standing_lines, table_section
from phpq.reproduce.tables import build_table


def section(target: str, scores: dict[str, float], *methods: str) -> Section:
    plan = cub_plan(target, *methods)
    return table_section(build_table(plan, target, made_up_records(plan, scores)), {})


def main_table(shown: Section) -> Table:
    assert isinstance(shown.blocks[0], Table)
    return shown.blocks[0]


def notes_of(shown: Section) -> str:
    return "\n".join(
        line for block in shown.blocks if isinstance(block, Note) for line in block.paragraphs
    )


def test_every_target_has_a_title() -> None:
    assert set(TITLES) == {*TABLES, *FIGURES}


def test_the_table_of_methods() -> None:
    shown = section("table1", {"dpsh": 40.0, "phpq": 78.0, "cfh": 50.0}, "dpsh", "phpq", "cfh")
    table = main_table(shown)
    assert table.columns == ("method", "16 bits: paper", "ours", "difference")
    assert table.rows == (
        ("DPSH", 34.97, "41.00 ± 1.00", "+6.03"),
        ("CFH (our reconstruction)", 72.08, "51.00 ± 1.00 †", "-21.08"),
        ("PHPQ", 76.03, "79.00 ± 1.00 ★", "+2.97"),
    )
    assert table.strong_row == 2
    assert "†: our reconstruction" in table.caption
    text = notes_of(shown)
    assert "16 bits: PHPQ is the best row: yes (79.00)." in text
    assert "CFH is more than 5 points below the paper (16 bits: -21.08)." in text
    assert "DPSH is more" not in text


def test_what_the_order_of_ties_could_make_of_it() -> None:
    plan = cub_plan("table1", "srlh", "adsh", "phpq")
    records = made_up_records(plan, {"srlh": 50.0, "adsh": 60.0, "phpq": 78.0})
    for record in records.values():
        record["map_range"] = [record["map"] - 5, record["map"] + 9]
        if record["method"] == "adsh":
            record |= {"map_learned": 70.0, "best_map_learned": 70.0}
            record["map_learned_range"] = [69.0, 71.0]
        if record["method"] == "phpq" and record["seed"]:
            del record["map_range"]  # measured before there were ranges
    shown = table_section(build_table(plan, "table1", records), {})
    (table,) = (b for b in shown.blocks if isinstance(b, Table) and "worst" in b.columns[0])
    assert table.columns == ("worst and best order of ties", "16 bits: worst", "best")
    assert "a range may miss the mean above" in table.caption
    assert table.rows == (
        ("ADSH, database learned from labels", "69.00", "71.00"),
        ("ADSH, database encoded", "56.00", "70.00"),
        ("SRLH (our reconstruction)", "46.00 †", "60.00 †"),
        ("PHPQ", "73.00", "87.00"),
    )
    plain = section("table1", {"phpq": 78.0}, "phpq")
    assert not any(isinstance(b, Table) and "worst" in b.columns[0] for b in plain.blocks)


def test_who_beats_phpq_is_said() -> None:
    plan = tiny_plan("table1", "cfh", "phpq")
    table = build_table(plan, "table1", made_up_records(plan, {"cfh": 9.0, "phpq": 8.0}))
    assert standing_lines(table) == [
        "16 bits: PHPQ is the best row: no (8.00); above it: CFH (9.00 †)."
    ]


def test_every_number_of_a_reconstruction_is_marked() -> None:
    shown = section("table1", {"srlh": 50.0, "phpq": 78.0}, "srlh", "phpq")
    for block in shown.blocks:
        if isinstance(block, Table):
            row = next(row for row in block.rows if str(row[0]).startswith("SRLH"))
            assert "our reconstruction" in str(row[0])
    last_and_best = next(
        block for block in shown.blocks if isinstance(block, Table) and "best" in block.columns
    )
    assert last_and_best.rows[0][1:] == ("51.00 ± 1.00 †", "52.00 ± 1.00 †")


def test_gains_of_variants() -> None:
    table = main_table(section("variants", {"phpq": 76.0, "gap": 75.5}))
    assert table.columns[1:] == (
        "16 bits: paper",
        "ours",
        "difference",
        "gain, paper",
        "gain, ours",
    )
    gap = next(row for row in table.rows if row[0] == "GAP")
    assert gap[-2:] == ("-0.68", "-0.50")


def test_without_the_paper_there_are_no_empty_columns() -> None:
    table = main_table(section("future", {"phpq": 76.0, "input-rho": 77.0}))
    assert table.columns == ("row", "16 bits: ours", "gain, ours")


def test_slips_of_the_paper_gaps_and_words_of_people() -> None:
    plan = cub_plan("alpha")
    table: dict[str, Any] = build_table(plan, "alpha", {})
    shown = table_section(table, {"alpha": "Alpha was tried.", "dsh": "About another table."})
    text = notes_of(shown)
    assert "3.00 is taken off" in text
    assert "cells are not run yet" in text
    assert "Alpha was tried." in text
    assert "another table" not in text


def test_means_over_fewer_seeds_are_named() -> None:
    plan = cub_plan("table1", "dpsh", "pqn", "phpq", bits=(16, 32))
    records = made_up_records(plan, {"dpsh": 40.0, "pqn": 75.0, "phpq": 78.0})
    gone = [
        plan.places["table1", name, bits, seed]
        for name, bits, seed in (("dpsh", 16, 1), ("dpsh", 32, 1), ("pqn", 32, 0), ("pqn", 32, 2))
    ]
    text = notes_of(table_section(build_table(plan, "table1", without(records, gone)), {}))
    assert "Of seeds 0, 2 only, at 16, 32 bits: DPSH." in text
    assert "Of seed 1 only, at 32 bits: PQN." in text
    assert "empty" not in text
    gone.append(plan.places["table1", "pqn", 32, 1])
    text = notes_of(table_section(build_table(plan, "table1", without(records, gone)), {}))
    assert "5 cells are not run yet: 1 place is empty." in text


def without(records: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: record for key, record in records.items() if key not in keys}
