from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from finished_runs import copy_run
from phpq.data import write_plumage
from phpq.gallery import Gallery
from phpq.gallery.check import verify_gallery
from phpq.model.weights import write_safetensors
from tiny_runs import tiny_birds, tiny_network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = copy_run(tmp_path / "run")
    write_plumage(tmp_path / "birds", tiny_birds(2, 1))
    Gallery.create(tmp_path / "g", run).add(tmp_path / "birds")
    return tmp_path / "g"


def spoil_all_codes(folder: Path) -> None:
    dataset = lance.dataset(folder / "images.lance")
    table = dataset.to_table()
    wrong = pa.FixedSizeListArray.from_arrays(pa.array(np.full(4 * len(table), 7, np.uint8)), 4)
    table = table.set_column(table.schema.get_field_index("code"), "code", wrong)
    dataset.merge_insert("id").when_matched_update_all().execute(table)


def test_lost_codes_are_made_again_from_the_files(folder: Path, tmp_path: Path) -> None:
    before = Gallery.open(folder).search(np.ones(32, np.float32), 100)
    spoil_all_codes(folder)
    files = sorted((tmp_path / "birds").rglob("*.png"))
    files[0].unlink()
    files[1].write_bytes(files[2].read_bytes())  # another image now
    assert not verify_gallery(folder).sound
    report = verify_gallery(folder, repair=True)
    assert report.sound
    assert len(report.lost) == 2
    after = Gallery.open(folder).search(np.ones(32, np.float32), 100)
    scores = {hit.id: hit.score for hit in after}
    assert len(scores) == len(before) - 2
    assert all(scores.get(hit.id, hit.score) == hit.score for hit in before)


def test_a_wrong_or_broken_model_is_said_and_not_mended(folder: Path) -> None:
    weights = folder / "model" / "weights.safetensors"
    write_safetensors(weights, tiny_network(seed=5).state_dict(), {"epoch": "1"})
    for repair in (False, True):
        report = verify_gallery(folder, repair=repair)
        assert not report.sound
        assert "another model" in report.problems[0]
    weights.unlink()
    report = verify_gallery(folder, repair=True)
    assert not report.sound
    assert "the model cannot be read" in report.problems[0]
