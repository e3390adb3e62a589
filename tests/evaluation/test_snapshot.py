from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phpq.data import open_dataset
from phpq.errors import FormatError, NotTrainedError
from phpq.evaluation.snapshot import read_snapshot, take_snapshot, write_snapshot
from picture_files import plain_images, write_classes


def write_one(folder: Path) -> Path:
    """Write a gallery of three rows."""
    images = plain_images([0, 1, 1], ("owl", "wren"))
    codes = np.array([[1, 2], [3, 4], [3, 255]], dtype=np.uint8)
    folder.mkdir(exist_ok=True)
    write_snapshot(folder, take_snapshot(codes, images, fingerprint="f" * 64))
    return folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = read_snapshot(write_one(tmp_path), remedy="")
    assert found.codes.tolist() == [[1, 2], [3, 4], [3, 255]]
    assert found.codes.dtype == np.uint8
    assert found.labels.tolist() == [0, 1, 1]
    assert (found.ids, found.class_names) == (("i0", "i1", "i2"), ("owl", "wren"))
    assert found.paths == (None, None, None)
    assert found.fingerprint == "f" * 64
    assert len(found) == 3


def test_files_are_kept_by_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "birds", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    images = open_dataset("birds").train
    snapshot = take_snapshot(np.zeros((2, 1), np.uint8), images, fingerprint="")
    assert snapshot.paths == tuple(str(tmp_path / "birds" / name) for name in images.ids)


def test_no_gallery_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotTrainedError, match=r"no gallery to search.*Do this."):
        read_snapshot(tmp_path, remedy="Do this.")


def test_codes_of_another_writing_are_noticed(tmp_path: Path) -> None:
    folder = write_one(tmp_path)
    np.save(folder / "gallery_codes.npy", np.zeros((3, 2), np.uint8))
    with pytest.raises(FormatError, match=r"does not belong to the gallery.json.*Do this."):
        read_snapshot(folder, remedy="Do this.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 9}, "format version 9"),
        ({"ids": ["i0"]}, r"columns have \[1, 3\] rows"),
        ({"labels": [0, 1, 2]}, "a label is in no class"),
        ({"labels": "abc"}, "is damaged"),
        ({"paths": None}, "is damaged"),
    ],
)
def test_a_damaged_gallery_is_a_format_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_one(tmp_path) / "gallery.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change))
    with pytest.raises(FormatError, match=message):
        read_snapshot(tmp_path, remedy="Do this.")
