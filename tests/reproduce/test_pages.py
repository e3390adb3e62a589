from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from made_up_grids import Finished
from phpq.data import open_dataset
from phpq.errors import FormatError
from phpq.reproduce.pages import write_pages
from phpq.reproduce.rows import RECONSTRUCTED, TARGETS
from phpq.reproduce.store import Store


def write(finished: Finished, target: str, *, images: bool = True) -> tuple[Path, ...]:
    plan = finished.planned(target)
    dataset = open_dataset(plan.subject.source) if images else None
    _, pages = write_pages(
        plan, finished.result.records, finished.place.store, dataset=dataset, word=target
    )
    return pages


def test_everything_has_a_page(finished: Finished) -> None:
    pages = write(finished, "all")
    folder = finished.place.store.folder
    assert pages[0] == folder / "all-plumage.html"
    html = pages[0].read_text("utf-8")
    assert not re.search(r"(src|href)=.?https?:", html)  # it asks the network for nothing
    for target in set(TARGETS) - {"all"}:
        page = folder / f"{target}-plumage.md"
        assert page in pages
        text = page.read_text("utf-8")
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert (folder / link).is_file()
        content = json.loads(page.with_suffix(".json").read_text("utf-8"))
        assert content["dataset"]["name"] == "plumage"
    table = json.loads((folder / "table1-plumage.json").read_text("utf-8"))
    ours = {row["name"]: row["cells"]["16"]["mean"] for row in table["rows"]}
    key = finished.plan.places["table1", "phpq", 16, 0]
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
    folder = finished.place.store.folder
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
    data, pages = write_pages(finished.planned("all"), {}, store, dataset=None, word="all")
    assert data["table1"]["missing"]
    assert all(page.is_file() for page in pages)
