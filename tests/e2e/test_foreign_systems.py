"""A whole walk where files are as stubborn as on Windows, names as blind as on macOS."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import phpq
from finished_runs import copy_run
from foreign_systems import imitate_windows
from phpq.data.pixel_cache import find_entry
from phpq.files import replacing, write_json, write_text
from picture_files import write_classes
from tiny_runs import tiny_birds, tiny_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_the_imitation_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = imitate_windows(monkeypatch)
    path = tmp_path / "numbers.npy"
    np.save(path, np.arange(1000))
    mapped = np.load(path, mmap_mode="r")
    with pytest.raises(PermissionError):
        path.unlink()
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(file.fileno())
    assert len(refused) == 2
    del mapped
    path.unlink()


def test_files_are_replaced_once_their_readers_have_closed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = imitate_windows(monkeypatch)
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    reader = path.open("rb")
    monkeypatch.setattr("phpq.files.time.sleep", lambda _: reader.close())  # it reads, and goes
    write_text(path, "two")
    assert path.read_text("utf-8") == "two"
    assert len(refused) == 1
    with path.open("rb"), pytest.raises(PermissionError), replacing(path) as temporary:
        temporary.write_text("three")
    assert path.read_text("utf-8") == "two"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.slow
def test_learning_indexing_and_searching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = imitate_windows(monkeypatch)
    birds = write_classes(tmp_path / "birds", {"owl": 4, "wren": 4})
    model = phpq.train(birds, config=tiny_config("training.epochs=1"), out=tmp_path / "run")
    phpq.evaluate(tmp_path / "run", birds)
    gallery = phpq.Gallery.create(tmp_path / "birds.gallery", model)
    gallery.add(birds)
    photo = birds / "owl" / "0.png"
    assert gallery.search(photo).total == 8
    # Another reader has it open, with its copy mapped, while it is changed.
    reader = phpq.Gallery.open(tmp_path / "birds.gallery")
    reader.search(photo)
    assert gallery.delete(["owl/1.png"]) == 1
    gallery.compact()
    assert gallery.search(photo).total == 7
    assert phpq.Gallery.open(tmp_path / "birds.gallery").search(photo).total == 7
    assert phpq.Gallery.open(copy_run(tmp_path / "other")).search(photo).total == 24
    # Only the copy that makes a start faster stays as it was, while that reader has it mapped.
    assert {Path(text.split()[-1]).name for text in refused} <= {"images.arrow"}


def test_kept_pixels_are_written_anew_while_the_old_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = imitate_windows(monkeypatch)
    folder = write_classes(tmp_path / "birds", {"owl": 4, "wren": 4})
    images, data = phpq.open_dataset(folder).train, tiny_config().data

    def fill(pixels: NDArray[Any]) -> dict[int, str]:
        pixels[:] = 7
        return {}

    entry = find_entry(tmp_path / "kept", images, data)
    assert entry is not None
    stored = entry.build((len(images), 3, 4, 4), fill)
    assert (stored.pixels == 7).all()
    assert refused == []
    os.utime(folder / "owl" / "0.png", (1, 1))  # now they are other images
    newer = find_entry(tmp_path / "kept", phpq.open_dataset(folder).train, data)
    assert newer is not None
    assert (newer.build((len(images), 3, 4, 4), fill).pixels == 7).all()
    assert len(refused) == 1  # the old ones stay as long as they are in use


def test_names_that_differ_in_capitals_alone_are_two_ids(tmp_path: Path) -> None:
    """One file on macOS and Windows, two here: a gallery goes by the text."""
    gallery = phpq.Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"))
    picture = tiny_birds().train.read(0)
    gallery.add([{"id": name, "image": picture, "label": name} for name in ("A.jpg", "a.jpg")])
    assert gallery.get("A.jpg").label == "A.jpg"
    assert gallery.delete(["a.jpg"]) == 1
    assert gallery.count() == 1
