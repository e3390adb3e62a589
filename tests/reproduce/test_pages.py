from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_up_grids import Finished, cub_plan, made_up_records, tiny_plan, tiny_subject
from phpq.data import open_dataset
from phpq.errors import FormatError
from phpq.report.blocks import Note, Section, Table
from phpq.reproduce.grid import make_plan
from phpq.reproduce.pages import standing_lines, stored_page, table_section, write_pages
from phpq.reproduce.paper import FIGURES, RECONSTRUCTED, TABLES, TARGETS, TITLES, UNSEEN
from phpq.reproduce.store import Store
from phpq.reproduce.tables import build_table


def write(finished: Finished, target: str, *, images: bool = True) -> tuple[Path, ...]:
    plan = finished.planned(target)
    dataset = open_dataset(plan.subject.source) if images else None
    _, pages = write_pages(
        plan, finished.result.records, finished.context.store, dataset=dataset, name=target
    )
    return pages


def test_everything_has_a_page(finished: Finished) -> None:
    pages = write(finished, "all")
    folder = finished.context.store.folder
    assert pages[0] == folder / "all-plumage.html"
    html = pages[0].read_text("utf-8")
    assert not re.search(r"(src|href)=.?https?:", html)  # it asks the network for nothing
    for target in set(TARGETS) - {"all", UNSEEN}:
        page = folder / f"{target}-plumage.md"
        assert page in pages
        text = page.read_text("utf-8")
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert (folder / link).is_file()
        content = json.loads(page.with_suffix(".json").read_text("utf-8"))
        assert content["dataset"]["name"] == "plumage"
        assert target == "top10" or stored_page(content, {}) == text
    table = json.loads((folder / "table1-plumage.json").read_text("utf-8"))
    ours = {row["name"]: row["cells"]["16"]["mean"] for row in table["rows"]}
    key = finished.plan.cell_keys["table1", "phpq", 16, 0]
    assert ours["phpq"] == round(finished.result.records[key]["map"], 2)
    assert f"| **{ours['phpq']:.2f}" in (folder / "table1-plumage.md").read_text("utf-8")
    curves = json.loads((folder / "pn-curves-plumage.json").read_text("utf-8"))
    assert set(curves["precision_at"]["16"]) == {
        "PQ",
        "ITQ",
        "ADSH, learned database",
        f"PQN {RECONSTRUCTED}",
        "OrthoHash",
        "PHPQ",
    }
    timed = json.loads((folder / "efficiency-plumage.json").read_text("utf-8"))
    assert timed["phpq_over_float"]["16"] > 0


def test_without_images_there_is_no_picture(finished: Finished) -> None:
    pages = write(finished, "top10", images=False)
    assert "The images are not here." in pages[1].read_text("utf-8")


def test_words_of_people(finished: Finished) -> None:
    folder = finished.context.store.folder
    notes = folder / "notes.json"
    try:
        notes.write_text('{"pqn": "It was tried with a larger margin."}', "utf-8")
        _, page = write(finished, "table1")
        assert "It was tried with a larger margin." in page.read_text("utf-8")
        notes.write_text("[", "utf-8")
        with pytest.raises(FormatError, match=r"notes\.json"):
            write(finished, "table1")
    finally:
        notes.unlink()


def test_a_grid_without_a_finished_cell_has_pages_too(finished: Finished, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    data, pages = write_pages(finished.planned("all"), {}, store, dataset=None, name="all")
    assert data["table1"]["missing"]
    assert all(page.is_file() for page in pages)


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
    assert set(TITLES) == {*TABLES, *FIGURES, UNSEEN}


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
    plan = cub_plan("table1", "srlh", "adsh", "csq")
    records = made_up_records(plan, {"srlh": 50.0, "adsh": 60.0, "csq": 78.0})
    for record in records.values():
        record["map_range"] = [record["map"] - 5, record["map"] + 9]
        if record["method"] == "adsh":
            record |= {"map_learned": 70.0, "best_map_learned": 70.0}
            record["map_learned_range"] = [69.0, 71.0]
        if record["method"] == "csq" and record["seed"]:
            del record["map_range"]  # measured before there were ranges
    shown = table_section(build_table(plan, "table1", records), {})
    (table,) = (b for b in shown.blocks if isinstance(b, Table) and "worst" in b.columns[0])
    assert table.columns == ("worst and best order of ties", "16 bits: worst", "best")
    assert "a range may miss the mean above" in table.caption
    assert table.rows == (
        ("ADSH, database learned from labels", "69.00", "71.00"),
        ("ADSH, database encoded", "56.00", "70.00"),
        ("SRLH (our reconstruction)", "46.00 †", "60.00 †"),
        ("CSQ", "73.00", "87.00"),
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
    assert gap[-2:] == ("-0.68", "-0.50 \N{PLUS-MINUS SIGN} 0.00")


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
    plan = cub_plan("table1", "dpsh", "csq", "dth", bits=(16, 32))
    records = made_up_records(plan, {"dpsh": 40.0, "csq": 75.0, "dth": 78.0})
    gone = [
        plan.cell_keys["table1", name, bits, seed]
        for name, bits, seed in (("dpsh", 16, 1), ("dpsh", 32, 1), ("csq", 32, 0), ("csq", 32, 2))
    ]
    text = notes_of(table_section(build_table(plan, "table1", without(records, gone)), {}))
    assert "Of seeds 0, 2 only, at 16, 32 bits: DPSH." in text
    assert "Of seed 1 only, at 32 bits: CSQ." in text
    assert "empty" not in text
    gone.append(plan.cell_keys["table1", "csq", 32, 1])
    text = notes_of(table_section(build_table(plan, "table1", without(records, gone)), {}))
    assert "5 cells are not run yet: 1 place is empty." in text


def without(records: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: record for key, record in records.items() if key not in keys}


def test_the_headline_has_p_at_1_and_float_search_beside_map(finished: Finished) -> None:
    _, page = write(finished, "headline")
    key = finished.plan.cell_keys["table1", "phpq", 16, 0]
    record = finished.result.records[key]
    floats = (record["map_float"], record["p1_float"])
    shown = [f"{round(value, 2):.2f}" for value in (record["precision_at"]["1"], *floats)]
    text = page.read_text("utf-8")
    assert f"| PHPQ | {' | '.join(shown)} |" in text
    content = json.loads(page.with_suffix(".json").read_text("utf-8"))
    assert [row["name"] for row in content["rows"]] == ["phpq"]
    paper = build_table(cub_plan("headline", bits=(16, 64)), "headline", {})
    cells = paper["rows"][0]["cells"]
    assert (cells["16"]["paper"], cells["64"]["paper"]) == (76.03, 76.21)
    assert cells["16"]["p1_float"] is None


def test_variants_of_both_recipes_have_a_table_each() -> None:
    subject = replace(tiny_subject(), name="cub200")
    plan = make_plan(subject, "kappa", bits=(16,), seeds=(0, 1), recipe="both")
    scores = {"kappa-5": 80.0, "kappa-1": 70.0, "kappa-5@paper": 40.0, "kappa-1@paper": 30.0}
    shown = table_section(build_table(plan, "kappa", made_up_records(plan, scores)), {})
    first, second = (b for b in shown.blocks if isinstance(b, Table) and b.columns[0] == "row")
    assert first.caption.startswith("Our recipe. Mean and deviation of seeds 0, 1")
    assert second.caption.startswith("Paper as printed. Mean")
    assert [row[0] for row in first.rows] == [row[0] for row in second.rows]
    assert first.rows[1][2] == "80.50 ± 0.71 ★"
    assert second.rows[1][2] == "40.50 ± 0.71 ★"  # the best of its own recipe
    text = notes_of(shown)
    assert "Our recipe: kappa = 5 is better than 1: confirmed, +10.00 ± 0.00 points" in text
    assert "Paper as printed: kappa = 5 is better than 1: confirmed" in text
    epochs = next(b for b in shown.blocks if isinstance(b, Table) and "epoch" in b.columns[0])
    assert [row[0] for row in epochs.rows][-1] == "kappa = 256, paper as printed"


def test_first_hits_of_codes_and_of_floats() -> None:
    plan = cub_plan("table1", "dpsh", "phpq")
    records = made_up_records(plan, {"dpsh": 40.0, "phpq": 78.0})
    for record in records.values():
        if record["method"] == "phpq":
            record |= {"map_float": 70.0, "p1_float": 75.0}
    shown = table_section(build_table(plan, "table1", records), {})
    table = next(b for b in shown.blocks if isinstance(b, Table) and b.columns[0] == "first hits")
    assert table.columns[1:] == ("16 bits: P@1", "float MAP", "float P@1")
    assert table.rows[0] == ("DPSH", "41.00", "\N{EN DASH}", "\N{EN DASH}")
    assert table.rows[-1] == ("PHPQ", "79.00", "70.00", "75.00")
