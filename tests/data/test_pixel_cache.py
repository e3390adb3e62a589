from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phpq.config import DataConfig
from phpq.data import DecodedImages, LabelledImages, decode_all
from phpq.data.folder import open_folder
from phpq.errors import DataError
from picture_files import plain_images, write_classes, write_image

SMALL = DataConfig(store_size=8)


@pytest.fixture
def images(tmp_path: Path) -> LabelledImages:
    return open_folder(write_classes(tmp_path / "birds", {"owl": 5, "wren": 5})).train


class Counter:
    """Decodes with a cache and counts the images that were really decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.decoded = 0

    def __call__(self, images: LabelledImages, config: DataConfig = SMALL) -> DecodedImages:
        self.decoded = 0
        return decode_all(images, config, cache=self.folder, progress=self._count)

    def _count(self, done: int, total: int) -> None:
        self.decoded = done


@pytest.fixture
def cached(tmp_path: Path) -> Counter:
    return Counter(tmp_path / "cache" / "pixels")


def test_a_second_run_decodes_nothing_and_gives_the_same(
    images: LabelledImages, cached: Counter
) -> None:
    plain = decode_all(images, SMALL)
    first = cached(images)
    assert cached.decoded == len(images)
    second = cached(images)
    assert cached.decoded == 0
    assert isinstance(second.pixels, np.memmap)
    assert (first.pixels == plain.pixels).all()
    assert (second.pixels == plain.pixels).all()
    assert sorted(path.suffix for path in cached.folder.iterdir()) == [".json", ".npy"]


def test_writing_to_the_pixels_never_reaches_the_disk(
    images: LabelledImages, cached: Counter
) -> None:
    pixels = cached(images).pixels
    before = pixels.copy()
    pixels[:] = 0
    assert (cached(images).pixels == before).all()
    assert cached.decoded == 0


def test_skipped_images_are_remembered(images: LabelledImages, cached: Counter) -> None:
    path = images.path(1)
    assert path is not None
    path.write_bytes(b"")
    first, second = cached(images), cached(images)
    assert cached.decoded == 0
    assert second.skipped == first.skipped != ()
    assert second.images.ids == first.images.ids
    assert (second.pixels == decode_all(images, SMALL).pixels).all()
    with pytest.raises(DataError, match="1 of 8 images"):
        cached(images, DataConfig(store_size=8, on_bad_image="refuse"))


def test_a_changed_file_or_setting_makes_it_stale(images: LabelledImages, cached: Counter) -> None:
    cached(images)
    path = images.path(0)
    assert path is not None
    write_image(path, (1, 2, 3))
    os.utime(path, ns=(1, 1))
    assert cached(images).pixels[0, :, 0, 0].tolist() == [1, 2, 3]
    assert cached.decoded == len(images)
    cached(images, DataConfig(store_size=8, max_pixels=1000))
    assert cached.decoded == len(images)
    assert len(list(cached.folder.glob("*.npy"))) == 1  # the stale pixels are gone
    cached(images.subset([3, 2, 1, 0, 4, 5, 6, 7]), DataConfig(store_size=8, max_pixels=1000))
    assert cached.decoded == len(images)


def _truncate(folder: Path) -> None:
    path = next(folder.glob("*.npy"))
    path.write_bytes(path.read_bytes()[:-10])


def _flip_a_byte(folder: Path) -> None:
    path = next(folder.glob("*.npy"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _lose_pixels(folder: Path) -> None:
    next(folder.glob("*.npy")).unlink()


def _break_manifest(folder: Path) -> None:
    next(folder.glob("*.json")).write_text("{", "utf-8")


def _empty_manifest(folder: Path) -> None:
    next(folder.glob("*.json")).write_text("[]", "utf-8")


def _lie_about_the_shape(folder: Path) -> None:
    path = next(folder.glob("*.json"))
    manifest = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(manifest | {"shape": [1, 3, 8, 8]}), "utf-8")


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip_a_byte, _lose_pixels, _break_manifest, _empty_manifest, _lie_about_the_shape],
)
def test_a_damaged_cache_is_made_anew(
    images: LabelledImages, cached: Counter, damage: Callable[[Path], None]
) -> None:
    before = cached(images).pixels.copy()
    damage(cached.folder)
    assert (cached(images).pixels == before).all()
    assert cached.decoded == len(images)
    cached(images)
    assert cached.decoded == 0


def test_an_interrupted_build_leaves_nothing_behind(images: LabelledImages, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all(images, SMALL, cache=tmp_path / "cache", progress=stop)
    assert list((tmp_path / "cache").iterdir()) == []


def test_images_without_files_are_not_cached(tmp_path: Path) -> None:
    decode_all(plain_images([0, 1], ("a", "b")), SMALL, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_is_a_clear_error(
    images: LabelledImages, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"Cannot write the cache .* do without a cache"):
        decode_all(images, SMALL, cache=tmp_path / "file")
