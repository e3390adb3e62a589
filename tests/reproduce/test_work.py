from __future__ import annotations

import math
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

from benchmark_layouts import write_dogs120
from made_up_grids import Finished, tiny_context, tiny_plan, tiny_subject
from phpq.data import open_dataset
from phpq.evaluation import LabelledEmbeddings, evaluate_codes
from phpq.evaluation.history import read_rows
from phpq.reproduce.grid import make_plan, open_subject
from phpq.reproduce.work import decode_once, hardware, is_compiled, run_cell
from phpq.training import train_run


@pytest.mark.parametrize(
    ("method", "tolerance"), [("phpq", 1e-9), pytest.param("pq", 2.0, marks=pytest.mark.rare)]
)
def test_a_cell_is_a_training_run(
    finished: Finished, tmp_path: Path, method: str, tolerance: float
) -> None:
    """The same settings by `train_run` give the same MAP; stored features are float16."""
    key = finished.plan.cell_keys["table1", method, 16, 0]
    cell = next(cell for cell in finished.plan.cells if cell.key == key)
    record = finished.result.records[key]
    train_run(finished.context.open(), cell.config, tmp_path, device="cpu")
    rows = [row for row in read_rows(tmp_path) if "map" in row]
    expected = {str(row["epoch"]): pytest.approx(row["map"], abs=tolerance) for row in rows}
    assert record["by_epoch"] == expected
    assert record["map"] == record["by_epoch"]["2"]
    assert record["best_map"] == max(record["by_epoch"].values())
    if cell.kind == "shallow":
        assert record["features_key"] == cell.start
    else:
        assert record["losses"]["loss"] == pytest.approx(rows[-1]["loss"])


@pytest.mark.slow
def test_a_cell_that_starts_from_a_shared_backbone_is_one_too(tmp_path: Path) -> None:
    subject = tiny_subject("method.classifier_share=0.5", epochs=2)
    plan = tiny_plan("table1", "orthohash", subject=subject)
    context = tiny_context(plan, tmp_path / "grid")
    _, record = (run_cell(cell, context) for cell in plan.cells)
    dataset = open_dataset(plan.subject.source)
    train_run(dataset, plan.cells[1].config, tmp_path / "run", device="cpu")
    last = read_rows(tmp_path / "run")[-1]
    assert record["map"] == pytest.approx(last["map"], abs=1e-9)
    assert record["epochs"] == last["epoch"] == 2
    assert list(record["by_epoch"]) == ["2"]  # codes exist once the method itself learns


def test_a_record_says_all_there_is_to_say(finished: Finished) -> None:
    written = finished.context.store.read_records()
    for cell in finished.plan.cells:
        record = finished.result.records[cell.key]
        assert written[cell.key] == record
        assert (record["bits"], record["seed"]) == (cell.bits, cell.seed)
        assert record["status"] == "done"
        assert record["commit"] == "abc"
        assert record["dataset"]["fingerprint"] == finished.plan.subject.fingerprint
        assert set(record["seconds"]) == {"loading", "training", "evaluation", "all"}
        assert record["started"] <= record["finished"]
        assert 0 < record["map"] <= 100
        if cell.kind != "features":
            assert record["best_map"] >= record["map"]
            assert list(record["precision_at"]) == ["1", "5", "10", "20"]
            assert record["health"]["rows"] == record["gallery"] == 24


def test_learned_databases_are_measured_beside_encoded_ones(finished: Finished) -> None:
    record = finished.result.records[finished.plan.cell_keys["table1", "adsh", 16, 0]]
    assert record["learned_by_epoch"]["2"] == record["map_learned"]
    assert set(record["learned_by_epoch"]) == set(record["by_epoch"]) == {"1", "2"}
    assert record["best_map_learned"] == max(record["learned_by_epoch"].values())
    other = finished.result.records[finished.plan.cell_keys["table1", "phpq", 16, 0]]
    assert "map_learned" not in other


@pytest.mark.parametrize("method", ["phpq", "orthohash", "itq"])
def test_kept_codes_give_the_recorded_map(finished: Finished, method: str) -> None:
    key = finished.plan.cell_keys["table1", method, 16, 0]
    kept = finished.context.store.read_codes(key)
    assert kept is not None
    assert len(kept.queries) == 8  # all of them: there are fewer than a thousand
    scores = evaluate_codes(
        LabelledEmbeddings(kept.queries, kept.query_labels),
        kept.codes,
        gallery_labels=kept.gallery_labels,
        codebooks=kept.codebooks,
        query_norm=kept.query_norm,
    )
    recorded = finished.result.records[key]["map"]
    assert scores.map_percent == pytest.approx(recorded, abs=1e-6 if method != "phpq" else 1.0)
    np.testing.assert_array_equal(kept.gallery_rows, np.arange(24))
    np.testing.assert_array_equal(kept.query_rows, np.arange(8))


def test_held_out_queries(tmp_path: Path) -> None:
    subject = tiny_subject("data.holdout_per_class=1", epochs=1)
    plan = make_plan(subject, "table1", bits=(16,), seeds=(0,), methods=["orthohash"])
    context = tiny_context(plan, tmp_path)
    record = run_cell(plan.cells[0], context)
    assert (record["gallery"], record["queries"]) == (20, 4)
    rows = context.store.read_arrays(plan.cells[0].key, "training")["gallery_rows"]
    np.testing.assert_array_equal(rows, np.arange(20))


def test_only_the_first_seed_keeps_codes(tmp_path: Path) -> None:
    plan = tiny_plan("table1", "orthohash", subject=tiny_subject(epochs=1))
    context = tiny_context(plan, tmp_path)
    record = run_cell(replace(plan.cells[0], keep=False), context)
    assert math.isfinite(record["map"])
    assert not context.store.arrays_path(plan.cells[0].key, "training").exists()


@pytest.mark.parametrize(
    ("asked", "grid", "device", "compiled"),
    [
        ("auto", True, "cuda", True),
        ("auto", False, "cuda", False),
        ("graph", True, "cuda", False),  # what was asked for counts more
        ("full", False, "cuda", True),
        ("full", True, "cpu", False),
    ],
)
def test_a_cell_compiles_as_asked_or_as_the_grid(
    tmp_path: Path, asked: str, grid: bool, device: str, compiled: bool
) -> None:
    plan = tiny_plan("table1", "phpq", subject=tiny_subject(f"training.accelerate={asked}"))
    context = replace(tiny_context(plan, tmp_path), device=device, compiled=grid)
    assert is_compiled(plan.cells[0], context) is compiled


def test_a_workplace_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    context = replace(tiny_context(tiny_plan("table1", "phpq"), tmp_path), home=tmp_path)
    assert ForkingPickler.loads(ForkingPickler.dumps(context)) == context


def test_the_data_set_is_opened_once(tmp_path: Path) -> None:
    context = tiny_context(tiny_plan("table1", "phpq"), tmp_path)
    dataset = context.open()
    assert context.open() is dataset
    assert dataset.source == context.subject.source


def test_photographs_are_decoded_into_the_cache(tmp_path: Path) -> None:
    subject, _ = open_subject(
        write_dogs120(tmp_path / "dogs"), settings=["data.store_size=16"], weights="none"
    )
    plan = make_plan(subject, "table1", bits=(16,), seeds=(0,), methods=["phpq"])
    context = tiny_context(plan, tmp_path / "grid")
    decode_once(plan.cells, context)
    stored = sorted(context.cache.glob("*.npy"))
    assert [np.load(path).shape for path in stored] == [(2, 3, 16, 16), (4, 3, 16, 16)]
    before = [path.stat().st_mtime_ns for path in stored]
    decode_once(plan.cells, context)
    assert [path.stat().st_mtime_ns for path in stored] == before


def test_hardware_says_what_ran_it() -> None:
    facts = hardware("cpu")
    assert facts["gpu"] is None
    assert facts["cpu"]
    assert facts["cpu_cores"] >= 1
