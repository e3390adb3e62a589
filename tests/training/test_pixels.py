"""Where pixels come from: resident or streamed, the same images in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from phpq.data import SkippedImage, open_dataset
from phpq.data.batches import ResidentPixels, StreamedPixels
from phpq.errors import DataError
from phpq.training import Reporter
from phpq.training.pixels import TrainingPixels, load_pixels
from phpq.training.progress import Advance
from picture_files import write_classes
from tiny_runs import tiny_birds, tiny_config, tiny_network

CPU = torch.device("cpu")


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
