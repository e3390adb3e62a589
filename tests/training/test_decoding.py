"""Several processes decode a set together: each a share, and all end with what one would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import process_groups
from phpq.data import decode_all, open_dataset
from phpq.errors import DataError
from phpq.training.decoding import decode_together
from phpq.training.distributed import ALONE
from picture_files import write_classes
from process_groups import together
from tiny_runs import tiny_config

CONFIG = tiny_config()


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A folder of two classes, two images of which cannot be read."""
    folder = tmp_path / "images"
    for split in ("train", "test"):
        write_classes(folder / split, {"a": 5, "b": 4})
    for name in ("a/0.png", "b/3.png"):
        (folder / "train" / name).write_bytes(b"no picture")
    return str(folder)


def decoded(size: int, source: str, folder: Path, cache: Path | None = None) -> list[Any]:
    folder.mkdir()
    assert together(size, process_groups.decode, source, CONFIG, folder, cache) == [0] * size
    whole = decode_all(open_dataset(source).train, CONFIG.data)
    facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
    for rank, fact in enumerate(facts):
        np.testing.assert_array_equal(np.load(folder / f"{rank}.npy"), whole.pixels)
        assert fact["ids"] == list(whole.images.ids)
        assert fact["skipped"] == [[image.id, image.reason] for image in whole.skipped]
    return facts


@pytest.mark.parametrize("size", [2, 4])
def test_each_decodes_its_share_and_gets_all(source: str, tmp_path: Path, size: int) -> None:
    facts = decoded(size, source, tmp_path / "found")
    every = [name for fact in facts for name in fact["asked"]]
    assert every == list(open_dataset(source).train.ids)
    assert max(len(fact["asked"]) for fact in facts) == -(-9 // size)


def test_the_cache_is_written_once_and_then_used(source: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    decoded(2, source, tmp_path / "before", cache)
    assert {path.suffix for path in cache.iterdir()} == {".npy", ".json"}
    assert len(list(cache.iterdir())) == 2
    facts = decoded(2, source, tmp_path / "after", cache)
    assert [fact["asked"] for fact in facts] == [[], []]
    # It is the cache of a single process, too.
    seen: list[int] = []
    images = open_dataset(source).train
    found = decode_all(images, CONFIG.data, cache=cache, progress=lambda done, _: seen.append(done))
    assert len(found) == 7
    assert seen == []


def test_what_one_process_cannot_read_is_refused_by_all(source: str, tmp_path: Path) -> None:
    config = tiny_config("data.on_bad_image=refuse")
    assert together(2, process_groups.decode, source, config, tmp_path, None) == [0, 0]
    with pytest.raises(DataError) as refusal:
        decode_all(open_dataset(source).train, config.data)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {"error": str(refusal.value)}


def test_a_group_of_one_decodes_all(source: str) -> None:
    images = open_dataset(source).train
    found = decode_together(images, CONFIG.data, group=ALONE)
    np.testing.assert_array_equal(found.pixels, decode_all(images, CONFIG.data).pixels)
