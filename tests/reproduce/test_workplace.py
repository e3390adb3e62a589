from __future__ import annotations

from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np

from benchmark_layouts import write_dogs120
from made_up_grids import tiny_place, tiny_plan
from phpq.reproduce.grid import make_plan
from phpq.reproduce.subject import open_subject
from phpq.reproduce.workplace import decode_once, hardware


def test_a_workplace_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    place = replace(tiny_place(tiny_plan("table1", "phpq"), tmp_path), home=tmp_path)
    assert ForkingPickler.loads(ForkingPickler.dumps(place)) == place
    assert place.weights == "none"


def test_the_data_set_is_opened_once(tmp_path: Path) -> None:
    place = tiny_place(tiny_plan("table1", "phpq"), tmp_path)
    dataset = place.open()
    assert place.open() is dataset
    assert dataset.source == place.source


def test_photographs_are_decoded_into_the_cache(tmp_path: Path) -> None:
    subject, _ = open_subject(
        write_dogs120(tmp_path / "dogs"), settings=["data.store_size=16"], weights="none"
    )
    plan = make_plan(subject, "table1", bits=(16,), seeds=(0,), methods=["phpq"])
    place = tiny_place(plan, tmp_path / "grid")
    decode_once(plan.cells, place)
    stored = sorted(place.cache.glob("*.npy"))
    assert [np.load(path).shape for path in stored] == [(2, 3, 16, 16), (4, 3, 16, 16)]
    before = [path.stat().st_mtime_ns for path in stored]
    decode_once(plan.cells, place)
    assert [path.stat().st_mtime_ns for path in stored] == before


def test_hardware_says_what_ran_it() -> None:
    facts = hardware("cpu")
    assert facts["gpu"] is None
    assert facts["cpu"]
    assert facts["cpu_cores"] >= 1
