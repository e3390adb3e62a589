from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phpq.data import open_dataset
from phpq.errors import FormatError, NotTrainedError
from phpq.evaluation.coded import CODED, read_coded, write_coded
from picture_files import plain_images, write_classes

CODES = np.array([[1, 2], [3, 4], [3, 255]], dtype=np.uint8)


def write_one(folder: Path) -> Path:
    """Write a gallery of three rows."""
    folder.mkdir(exist_ok=True)
    images = plain_images([0, 1, 1], ("owl", "wren"))
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_coded(folder, images, CODES, vectors, fingerprint="f" * 64)
    return folder


def write_old(folder: Path, **changes: Any) -> None:
    """Write the two files of version 0.1.0."""
    np.save(folder / "gallery_codes.npy", CODES)
    rows = {
        "format_version": 1,
        "model_fingerprint": "f" * 64,
        "codes_sha256": hashlib.sha256((folder / "gallery_codes.npy").read_bytes()).hexdigest(),
        "class_names": ["owl", "wren"],
        "ids": ["i0", "i1", "i2"],
        "labels": [0, 1, 1],
        "paths": [None, None, None],
    }
    (folder / "gallery.json").write_text(json.dumps(rows | changes))


@pytest.mark.parametrize("old", [False, True])
def test_what_is_written_is_read_back(tmp_path: Path, old: bool) -> None:
    write_old(tmp_path) if old else write_one(tmp_path)
    found = read_coded(tmp_path, remedy="")
    assert found.codes.tolist() == CODES.tolist()
    assert found.codes.dtype == np.uint8
    assert (found.ids, found.labels) == (("i0", "i1", "i2"), ("owl", "wren", "wren"))
    assert found.paths == (None, None, None)
    assert found.fingerprint == "f" * 64
    if old:
        assert found.embeddings is None
    else:
        assert found.embeddings is not None
        assert found.embeddings.dtype == np.float16
        assert found.embeddings[2].tolist() == [8, 9, 10, 11]


def test_a_new_file_takes_the_place_of_the_old_ones(tmp_path: Path) -> None:
    write_old(tmp_path)
    write_one(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [CODED]


def test_files_are_kept_by_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "birds", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    images = open_dataset("birds").train
    vectors = np.zeros((2, 4), np.float32)
    write_coded(tmp_path, images, np.zeros((2, 1), np.uint8), vectors, fingerprint="")
    paths = tuple(str(tmp_path / "birds" / name) for name in images.ids)
    assert read_coded(tmp_path, remedy="").paths == paths


def test_no_gallery_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotTrainedError, match=r"no gallery to search.*Do this."):
        read_coded(tmp_path, remedy="Do this.")


def test_any_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = write_one(tmp_path) / CODED
    whole = path.read_bytes()
    for place in (0, whole.index(CODES.tobytes()) + 2, len(whole) - 10):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FormatError, match=r"gallery.npz' is damaged.*Do this."):
            read_coded(tmp_path, remedy="Do this.")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"gallery.npz' is damaged"):
        read_coded(tmp_path, remedy="Do this.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes_sha256": ""}, "does not belong to the gallery.json"),
        ({"format_version": 9}, "format version 9"),
        ({"ids": ["i0"]}, r"columns have \[1, 3\] rows"),
        ({"labels": [0, 1, 2]}, "a label is in no class"),
        ({"labels": "abc"}, "is damaged"),
        ({"paths": None}, "is damaged"),
    ],
)
def test_damaged_old_files_are_a_format_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_old(tmp_path, **change)
    with pytest.raises(FormatError, match=message):
        read_coded(tmp_path, remedy="Do this.")
