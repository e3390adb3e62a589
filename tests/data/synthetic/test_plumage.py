from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from phpq.config import DataConfig
from phpq.data import decode_all, mark_mask, open_dataset, plumage, write_plumage
from phpq.data.synthetic.plumage import PlumageReader, draw_picture, open_plumage
from phpq.data.synthetic.species import draw_species
from phpq.errors import DataError
from picture_files import plain_images


def test_sizes_labels_and_ids() -> None:
    dataset = plumage(6, 5, test_per_species=2, size=16)
    assert dataset.train.class_sizes().tolist() == [5] * 6
    assert dataset.test.class_sizes().tolist() == [2] * 6
    assert dataset.train.ids[5] == f"train/{dataset.class_names[1]}/0000.png"
    assert dataset.train.read(0).size == (16, 16)
    assert dataset.train.read(0).mode == "RGB"


def test_an_image_depends_on_seed_species_and_index_alone() -> None:
    small = plumage(4, 3, test_per_species=1, size=24)
    large = plumage(9, 7, test_per_species=5, size=24)
    for name in (small.train.ids[7], small.test.ids[2]):
        one, other = (
            next(
                images.read(images.ids.index(name))
                for images in (dataset.train, dataset.test)
                if name in images.ids
            )
            for dataset in (small, large)
        )
        assert one.tobytes() == other.tobytes()
    copy = pickle.loads(pickle.dumps(small.train))
    assert copy.read(4).tobytes() == small.train.read(4).tobytes()


def test_no_two_images_are_alike() -> None:
    dataset = plumage(5, 6, test_per_species=6, size=16)
    pixels = [
        images.read(i).tobytes() for images in (dataset.train, dataset.test) for i in range(30)
    ]
    assert len(set(pixels)) == 60


def test_masks_follow_the_marks() -> None:
    images = plumage(3, 4, size=64).train.subset([9, 2])
    mask = mark_mask(images, 0)
    assert mask.shape == (64, 64)
    assert 0.02 < mask.mean() < 0.4
    reader = images.reader
    assert isinstance(reader, PlumageReader)
    inside = np.zeros_like(mask)
    for site in reader.picture(images.position(0)).sites:
        for shape in site.shapes:
            left, top = np.floor(np.min(shape, axis=0)).astype(int).clip(0)
            right, bottom = np.ceil(np.max(shape, axis=0)).astype(int) + 1
            inside[top:bottom, left:right] = True
    assert not (mask & ~inside).any()
    assert (mark_mask(images, 1) != mask).any()


def test_only_plumage_has_known_marks() -> None:
    with pytest.raises(DataError, match="is not plumage"):
        mark_mask(plain_images([0, 1], ("a", "b")), 0)


def test_written_birds_are_read_back_the_same(tmp_path: Path) -> None:
    dataset = plumage(2, 3, test_per_species=1, size=20)
    write_plumage(tmp_path / "out", dataset)
    again = open_dataset(tmp_path / "out")
    assert again.train.ids == dataset.train.ids
    assert again.class_names == dataset.class_names
    for index in range(6):
        assert again.train.read(index).tobytes() == dataset.train.read(index).tobytes()


def test_raw_pixels_do_not_tell_the_species() -> None:
    # Were the nearest neighbour in pixels right, the set would measure nothing; chance is 1 in 8.
    dataset = plumage(8, 20, test_per_species=8, size=32)
    config = DataConfig(store_size=16)
    gallery, queries = (
        decode_all(images, config).pixels.reshape(len(images), -1).astype(np.float64)
        for images in (dataset.train, dataset.test)
    )
    distances = ((queries[:, None] - gallery[None]) ** 2).sum(axis=2)
    nearest = dataset.train.labels[distances.argmin(axis=1)]
    assert (nearest == dataset.test.labels).mean() < 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("specie=3", "Unknown plumage option 'specie'.*Did you mean 'species'"),
        ("species=many", "'species=many' needs a whole number"),
        ("species", "'species' needs a whole number"),
        ("species=1", "num_species=1: it must be from 2"),
        ("images=0", "images_per_species=0: it must be from 1"),
        ("size=4", "size=4: it must be from 16 to 1024"),
        ("test=0", "test_per_species=0"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_plumage(options)


MARKS = draw_species(1, seed=0)[0].marks


def test_the_same_key_gives_the_same_picture() -> None:
    one, two = (draw_picture(MARKS, size=48, key="a") for _ in range(2))
    assert one.image.tobytes() == two.image.tobytes()
    assert one.sites == two.sites
    assert draw_picture(MARKS, size=48, key="b").image.tobytes() != one.image.tobytes()


def test_the_scene_is_the_same_at_every_size() -> None:
    small = draw_picture(MARKS, size=48, key="a")
    large = draw_picture(MARKS, size=192, key="a")
    reduced = np.asarray(large.image.reduce(4), dtype=np.float64)
    assert np.abs(reduced - np.asarray(small.image)).mean() < 8
    for one, other in zip(small.sites, large.sites, strict=True):
        assert np.array(other.shapes[0]) / 4 == pytest.approx(np.array(one.shapes[0]), abs=1e-6)


def test_the_scene_varies_in_pose_light_and_place() -> None:
    pictures = [draw_picture(MARKS, size=32, key=str(i)) for i in range(40)]
    means = [np.asarray(picture.image).mean() for picture in pictures]
    eyes = np.array(
        [
            np.mean(site.shapes[0], axis=0)
            for picture in pictures
            for site in picture.sites
            if site.mark == "eye_ring"
        ]
    )
    assert np.std(means) > 10
    assert (eyes[:, 0] < 16).sum() > 8  # birds look both ways
    assert (eyes[:, 0] > 16).sum() > 8
    assert eyes.min() > 0
    assert eyes.max() < 32  # the head is never out of the picture
