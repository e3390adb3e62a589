"""Synthetic plumage as a data set: numbers of species and images in, a `Dataset` out.

Nothing is stored. An image is a function of (seed, species, index) alone, so any image can be drawn
by itself, in any order and any process, and a larger set contains the smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from phpq.data.images import Dataset, LabelledImages
from phpq.data.synthetic.scene import Picture, draw_picture
from phpq.data.synthetic.species import MOST_SPECIES, Marks, draw_species
from phpq.errors import DataError, nearest_hint


@dataclass(frozen=True, slots=True)
class PlumageReader:
    """Draws the images of one split; image i is image `i % per_species` of its species."""

    seed: int  # another seed draws other species and other scenes
    split: Literal["train", "test"]  # which never share a scene
    marks: tuple[Marks, ...]  # what each species looks like
    per_species: int  # images of each species
    size: int  # side of an image in pixels

    def read(self, index: int) -> Image.Image:
        """Return image `index` in mode RGB."""
        return self.picture(index).image

    def picture(self, index: int) -> Picture:
        """Return image `index` with the places of its marks."""
        species, number = divmod(index, self.per_species)
        key = f"plumage {self.seed} {species} {self.split} {number}"
        return draw_picture(self.marks[species], size=self.size, key=key)


def plumage(
    num_species: int = 20,
    images_per_species: int = 40,
    *,
    test_per_species: int = 10,
    size: int = 96,
    seed: int = 0,
) -> Dataset:
    """Make a data set of drawn birds; the images are drawn when they are read.

    Args:
        num_species: From 2 to 20,000; each run of four is a family of look-alikes.
        images_per_species: Training images of each species.
        test_per_species: Test images of each species, besides those.
        size: Side of an image in pixels, from 16 to 1,024.
        seed: Another seed draws other species and other scenes.
    """
    limits = {
        "num_species": (num_species, 2, MOST_SPECIES),
        "images_per_species": (images_per_species, 1, 1_000_000),
        "test_per_species": (test_per_species, 1, 1_000_000),
        "size": (size, 16, 1024),
    }
    for name, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise DataError(f"Plumage with {name}={value}: it must be from {least} to {most}.")
    species = draw_species(num_species, seed=seed)
    names = tuple(one.name for one in species)
    marks = tuple(one.marks for one in species)

    def split(which: Literal["train", "test"], per_species: int) -> LabelledImages:
        ids = tuple(f"{which}/{name}/{i:04d}.png" for name in names for i in range(per_species))
        labels = np.repeat(np.arange(num_species, dtype=np.int64), per_species)
        reader = PlumageReader(seed, which, marks, per_species, size)
        return LabelledImages(f"plumage/{which}", ids, labels, names, reader)

    return Dataset(
        "plumage",
        train=split("train", images_per_species),
        test=split("test", test_per_species),
        source=f"plumage:species={num_species},images={images_per_species},"
        f"test={test_per_species},size={size},seed={seed}",
    )


def open_plumage(options: str = "", *, seed: int = 0) -> Dataset:
    """Make drawn birds from a text such as "species=20,images=40,test=10,size=96,seed=0"."""
    known = {
        "species": "num_species",
        "images": "images_per_species",
        "test": "test_per_species",
        "size": "size",
        "seed": "seed",
    }
    given = {"seed": seed}
    for option in filter(None, (part.strip() for part in options.split(","))):
        name, _, value = option.partition("=")
        if name not in known:
            raise DataError(f"Unknown plumage option {name!r}. {nearest_hint(name, known)}")
        try:
            given[known[name]] = int(value)
        except ValueError as error:
            raise DataError(
                f"The plumage option {option!r} needs a whole number, as in 'species=20'."
            ) from error
    return plumage(**given)


def mark_mask(images: LabelledImages, index: int) -> NDArray[np.bool_]:
    """Find the pixels of all marks of a drawn image, those left plain included.

    Args:
        images: Plumage, or a subset of it.
        index: Position of the image.

    Returns:
        (size, size) bool, true where a mark may be.
    """
    reader = images.reader
    if not isinstance(reader, PlumageReader):
        raise DataError(f"{images.name!r} is not plumage: only drawn birds have known marks.")
    mask = Image.new("1", (reader.size, reader.size))
    draw = ImageDraw.Draw(mask)
    for site in reader.picture(images.place(index)).sites:
        for shape in site.shapes:
            draw.polygon(list(shape), fill=1)
    return np.asarray(mask, dtype=np.bool_)


def write_plumage(folder: Path, dataset: Dataset) -> Path:
    """Write a plumage data set as PNG files `train/<species>/<number>.png` and `test/...`.

    Args:
        folder: Made if need be; files of the same name are replaced.
        dataset: From `plumage`.

    Returns:
        `folder`.
    """
    for images in (dataset.train, dataset.test):
        for index, name in enumerate(images.ids):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            images.read(index).save(path)
    return folder
