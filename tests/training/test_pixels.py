"""Resident or streamed pixels are the same; several processes get what one would have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import process_groups
from phpq.data import SkippedImage, decode_all, open_dataset
from phpq.data.batches import ResidentPixels, StreamedPixels
from phpq.errors import DataError
from phpq.training import Reporter
from phpq.training.distributed import ALONE
from phpq.training.pixels import TrainingPixels, decode_together, load_pixels
from phpq.training.progress import Advance
from picture_files import write_classes
from process_groups import together
from tiny_runs import tiny_birds, tiny_config, tiny_network

CPU = torch.device("cpu")
CONFIG = tiny_config()


class Recorder(Reporter):
    def __init__(self) -> None:
        self.titles: list[str] = []
        self.left_out: list[str] = []

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance | None]:
        self.titles.append(f"{title} {total}")
        yield None

    def skipped(self, images: Sequence[SkippedImage]) -> None:
        self.left_out += [image.id for image in images]


def load(*assignments: str, folder: Path | None = None) -> tuple[TrainingPixels, Recorder]:
    reporter = Recorder()
    dataset = open_dataset(str(folder)) if folder else tiny_birds()
    config = tiny_config(*assignments)
    return load_pixels(dataset, config, device=CPU, reporter=reporter), reporter


def test_pixels_stay_on_the_device_or_are_streamed_as_asked() -> None:
    for wanted in ("on", "auto"):
        kept, reporter = load(f"training.images_on_device={wanted}")
        assert isinstance(kept.resident, ResidentPixels)
        assert kept.source is kept.resident
        assert reporter.titles == ["decoding plumage/train 24", "decoding plumage/test 8"]
    streamed, reporter = load("training.images_on_device=off")
    assert streamed.resident is None
    assert isinstance(streamed.source, StreamedPixels)
    assert reporter.titles == ["checking plumage/train 24", "checking plumage/test 8"]


def test_too_large_a_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpq.training.pixels.fits_on", lambda device, size: False)
    assert load("training.images_on_device=auto")[0].resident is None
    assert load("training.images_on_device=on")[0].resident is not None


def test_both_ways_embed_the_same() -> None:
    network = tiny_network()
    kept, _ = load("training.images_on_device=on")
    streamed, _ = load("training.images_on_device=off")
    np.testing.assert_array_equal(kept.embed_train(network), streamed.embed_train(network))
    np.testing.assert_array_equal(kept.embed_test(network), streamed.embed_test(network))
    assert kept.embed_train(network).shape == (24, 32)
    assert kept.embed_test(network).shape == (8, 32)


@pytest.mark.parametrize("where", ["on", "off"])
def test_a_bad_image_is_left_out_before_training(tmp_path: Path, where: str) -> None:
    for split in ("train", "test"):
        write_classes(tmp_path / split, {"a": 3, "b": 3})
    (tmp_path / "train" / "a" / "1.png").write_bytes(b"no picture")
    assignment = f"training.images_on_device={where}"
    pixels, reporter = load(assignment, folder=tmp_path)
    assert len(pixels.train) == 5
    assert [name.rsplit("/", 1)[-1] for name in reporter.left_out] == ["1.png"]
    assert pixels.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert pixels.embed_train(tiny_network()).shape == (5, 32)
    with pytest.raises(DataError, match=r"1\.png"):
        load(assignment, "data.on_bad_image=refuse", folder=tmp_path)


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


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.rare)])
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
