"""The table of new kinds: cells of a tiny grid measured by the protocol, and their page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_grids import Finished, tiny_context, tiny_plan, tiny_subject
from phpq.data import learned_part, unseen_split
from phpq.evaluation.search import SearchSetup, search
from phpq.evaluation.unseen import OPEN, UNSEEN
from phpq.report.blocks import Table
from phpq.reproduce.pages import write_pages
from phpq.reproduce.runner import run_plan
from phpq.reproduce.unseen import COLUMNS, FLOATS, OWN, unseen_section, unseen_table
from phpq.training import train_run

METHODS = ("phpq", "lsh", "orthohash")


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    plan = tiny_plan(UNSEEN, *METHODS, bits=(8, 16), subject=tiny_subject(epochs=1))
    context = tiny_context(plan, tmp_path_factory.mktemp("unseen"))
    lines: list[str] = []
    result = run_plan(plan, context, processes=0, say=lines.append)
    assert not result.failed
    return Finished(plan, context, result, lines)


def test_methods_learn_half_of_the_classes_at_the_longest_length(unseen: Finished) -> None:
    assert {bits for _, _, bits, _ in unseen.plan.cell_keys} == {16}
    assert all(cell.config.data.holdout_classes == 0.5 for cell in unseen.plan.cells)
    assert all(cell.config.data.learned_images == "all" for cell in unseen.plan.cells)
    cell = unseen.plan.cells[0]
    part = learned_part(unseen.context.open(), cell.config.data)
    gallery, queries = unseen_split(unseen.context.open(), cell.config.data)
    record = unseen.result.records[unseen.plan.cell_keys[UNSEEN, "phpq", 16, 0]]
    assert (record["gallery"], record["queries"]) == (len(part.train), len(part.test)) == (14, 2)
    alone = next(s for s in record["unseen"] if s["protocol"] == UNSEEN)
    assert alone["gallery"] == alone["queries"] == len(gallery) + len(queries) == 16
    apart = next(s for s in record["unseen"] if s["protocol"] == "unseen@all")
    assert (apart["gallery"], apart["queries"]) == (14 + len(gallery), len(queries))


def test_ways_are_those_that_say_something(unseen: Finished) -> None:
    def ways(name: str) -> list[tuple[str, str]]:
        record = unseen.result.records[unseen.plan.cell_keys[UNSEEN, name, 16, 0]]
        for way in {(s["way"], s["labels"]) for s in record["unseen"]}:
            mine = [s["protocol"] for s in record["unseen"] if (s["way"], s["labels"]) == way]
            assert set(OPEN) <= set(mine) or mine == ["five labelled"]
        return list(dict.fromkeys((s["way"], s["labels"]) for s in record["unseen"]))

    assert ways("orthohash") == [(OWN, "without")]  # its floats are its signs
    assert ways("lsh") == [(OWN, "without"), (FLOATS, "without")]
    assert ways("lsh-imagenet") == [(OWN, "without"), (FLOATS, "without")]
    assert {("codes", "with"), ("codes", "without"), ("float", "without")} <= set(ways("phpq"))
    assert ways("phpq")[:2] == [(OWN, "without"), (FLOATS, "without")]


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["all", "last", "head"])
def test_galleries_of_phpq_are_fitted_to_its_general_embedding(
    trainable: str, tmp_path: Path
) -> None:
    subject = tiny_subject(f"training.trainable={trainable}", epochs=1)
    plan = tiny_plan(UNSEEN, "phpq", subject=subject)
    context = tiny_context(plan, tmp_path / "grid")
    result = run_plan(plan, context, processes=0, say=print)
    key = plan.cell_keys[UNSEEN, "phpq", 16, 0]
    cell = next(cell for cell in plan.cells if cell.key == key)
    model = train_run(context.open(), cell.config, tmp_path / "run", device="cpu")
    parts = unseen_split(context.open(), cell.config.data)
    images = np.concatenate([model.embed(part, space="general") for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    rows = np.arange(len(labels))
    expected = search(SearchSetup("float", images), labels, UNSEEN, gallery=rows, queries=rows)
    record = result.records[key]
    found = next(s for s in record["unseen"] if (s["protocol"], s["way"]) == (UNSEEN, "float"))
    assert found["values"] == pytest.approx(expected.values, abs=0.01)


def test_seen_at_seen_of_its_own_codes_is_the_map_of_the_cell(unseen: Finished) -> None:
    for name in ("phpq", "orthohash", "lsh"):
        record = unseen.result.records[unseen.plan.cell_keys[UNSEEN, name, 16, 0]]
        own = [s for s in record["unseen"] if (s["protocol"], s["way"]) == ("seen@seen", OWN)]
        assert own[0]["values"]["map"] == pytest.approx(record["map"], abs=1e-4)


def test_the_table_has_means_over_seeds_and_names_gaps(unseen: Finished) -> None:
    plan = tiny_plan(UNSEEN, *METHODS, bits=(16,), seeds=(0, 1), subject=tiny_subject(epochs=1))
    records = dict(unseen.result.records)
    first, second = (plan.cell_keys[UNSEEN, "orthohash", 16, seed] for seed in (0, 1))
    other = {**records[first], "unseen": [dict(s) for s in records[first]["unseen"]]}
    for score in other["unseen"]:
        score["values"] = dict.fromkeys(score["values"], 0.0)
    table = unseen_table(plan, records | {second: other})
    row = next(row for row in table["rows"] if row["name"] == "orthohash")
    alone = next(s for s in records[first]["unseen"] if s["protocol"] == UNSEEN)
    assert row["values"]["unseen: R@1"] == pytest.approx(alone["values"]["r1"] / 2, abs=0.006)
    assert plan.cell_keys[UNSEEN, "phpq", 16, 1] in table["missing"]
    section = unseen_section(table)
    assert isinstance(section.blocks[0], Table)
    assert section.blocks[0].columns == ("method", "search over", "labels", *COLUMNS)
    assert len(section.blocks) == 2


def test_a_frozen_backbone_has_features_of_one_kind() -> None:
    subject = tiny_subject("training.trainable=head", epochs=1)
    plan = tiny_plan(UNSEEN, "phpq", "lsh", subject=subject)
    assert [row.name for row in plan.rows[UNSEEN]] == ["lsh", "phpq"]
    last = tiny_plan(UNSEEN, "lsh", subject=tiny_subject("training.trainable=last", epochs=1))
    assert [row.name for row in last.rows[UNSEEN]] == ["lsh", "lsh-imagenet"]  # one has learned
    section = unseen_section(unseen_table(plan, {}))
    assert section.lead.endswith("The backbone is frozen; the heads learn.")


def test_pages_are_written(unseen: Finished, tmp_path: Path) -> None:
    data, pages = write_pages(
        unseen.plan, unseen.result.records, unseen.context.store, dataset=None, name=UNSEEN
    )
    assert set(data) == {UNSEEN}
    assert [page.name for page in pages] == ["unseen-plumage.html", "unseen-plumage.md"]
    text = pages[1].read_text("utf-8")
    assert "Kinds that training never saw" in text or "kinds that training never saw" in text
    assert "| PHPQ | codes of the gallery's own | with |" in text
    values = [v for row in data[UNSEEN]["rows"] for v in row["values"].values() if v is not None]
    assert np.all((np.array(values) >= 0) & (np.array(values) <= 100))
