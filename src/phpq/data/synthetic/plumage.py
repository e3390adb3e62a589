"""Synthetic plumage as a data set: numbers of species and images in, a `Dataset` out.

Nothing is stored. An image is a function of (seed, species, index) alone, so any image can be drawn
by itself, in any order and any process, and a larger set contains the smaller one. A scene varies
all that must not matter: place, pose, coat, background, light and what hides the bird.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from phpq.data.images import Dataset, LabelledImages
from phpq.data.synthetic._bird import (
    COLOURS,
    Bird,
    Colour,
    MarkSite,
    Pen,
    Point,
    draw_bird,
    ellipse,
    mix,
    shade,
    smooth,
)
from phpq.data.synthetic.species import MOST_SPECIES, VALUES, Marks, draw_species
from phpq.errors import DataError, nearest_hint

_COATS: tuple[Colour, ...] = (
    (132, 106, 82),
    (118, 118, 122),
    (122, 128, 88),
    (104, 124, 142),
    (156, 128, 96),
    (128, 104, 112),
    (96, 120, 112),
)
_SKIES: tuple[tuple[Colour, Colour], ...] = (
    ((186, 214, 232), (222, 232, 216)),
    ((168, 196, 148), (98, 138, 92)),
    ((236, 214, 176), (192, 156, 122)),
    ((206, 198, 222), (156, 172, 198)),
    ((122, 154, 138), (62, 96, 92)),
    ((238, 222, 206), (214, 190, 178)),
)
_LEAVES: tuple[Colour, ...] = ((86, 132, 62), (122, 152, 72), (62, 104, 74), (176, 142, 62))
_BARK: tuple[Colour, ...] = ((98, 76, 60), (122, 100, 82), (76, 66, 62))


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One drawn image."""

    image: Image.Image  # mode RGB, square
    sites: tuple[MarkSite, ...]  # where each mark is, in pixels of `image`


def draw_picture(marks: Marks, *, size: int, key: str) -> Picture:
    """Draw one bird in its surroundings; the key decides all but its marks, at every size alike."""
    rng = random.Random(key)
    factor = 3 if size <= 128 else 2
    side = size * factor
    canvas = _background(rng, side)
    draw = ImageDraw.Draw(canvas)
    pen = _stand(rng, draw, side)
    _perch(rng, pen)
    sites = draw_bird(pen, marks, _individual(rng), rng)
    _hide(rng, pen)
    light = _light(rng, size)
    focus = rng.choice((0.0, 0.0, 0.3, 0.55)) * size / 96
    small = canvas.reduce(factor).filter(ImageFilter.GaussianBlur(focus))
    pixels = np.asarray(small, dtype=np.float32) * light[..., :3] + light[..., 3:]
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    shrunk = (
        tuple(tuple((x / factor, y / factor) for x, y in shape) for shape in site.shapes)
        for site in sites
    )
    shown = zip(sites, shrunk, strict=True)
    return Picture(image, tuple(replace(site, shapes=shapes) for site, shapes in shown))


def _stand(rng: random.Random, draw: ImageDraw.ImageDraw, side: int) -> Pen:
    """Return a pen in bird units: where the bird is, how large, how tilted, which way it looks."""
    scale = side * rng.uniform(0.36, 0.53)
    tilt = math.radians(rng.uniform(-28, 18))
    flip = rng.choice((-1.0, 1.0)) * rng.uniform(0.78, 1.0)  # a bird half turned away looks short
    cos, sin = math.cos(tilt) * scale, math.sin(tilt) * scale
    x = side * (0.5 + rng.uniform(-0.06, 0.06)) + flip * 0.10 * scale
    y = side * (0.5 + rng.uniform(-0.06, 0.06)) + 0.06 * scale
    return Pen(draw, (flip * cos, -flip * sin, sin, cos, x, y))


def _individual(rng: random.Random) -> Bird:
    coat = shade(rng.choice(_COATS), rng.uniform(0.85, 1.12))
    return Bird(
        head=rng.uniform(-18, 20),
        tail=rng.uniform(-20, 22),
        wing=rng.uniform(-8, 10),
        coat=coat,
        belly=mix(coat, (244, 236, 220), rng.uniform(0.5, 0.75)),
        wear={mark: rng.uniform(0.0, 0.45) for mark in VALUES},
    )


def _background(rng: random.Random, side: int) -> Image.Image:
    """Paint a gradient with soft blobs: drawn tiny and enlarged, which blurs it for nothing."""
    top, bottom = rng.choice(_SKIES)
    small = Image.new("RGB", (24, 24), top)
    draw = ImageDraw.Draw(small)
    for row in range(24):
        draw.line([(0, row), (24, row)], fill=mix(top, bottom, row / 23))
    for _ in range(rng.randint(5, 11)):
        x, y, r = rng.uniform(0, 24), rng.uniform(0, 24), rng.uniform(1.2, 4.5)
        colour = mix(mix(top, bottom, y / 24), rng.choice(_LEAVES), rng.uniform(0.2, 0.7))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    soft = small.filter(ImageFilter.BoxBlur(0.8))
    canvas = soft.resize((side, side), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(canvas)
    for _ in range(rng.randint(0, 2)):  # distant twigs
        y, slope = rng.uniform(0, side), rng.uniform(-0.6, 0.6) * side
        colour = mix(rng.choice(_BARK), mix(top, bottom, 0.5), 0.45)
        draw.line([(0, y), (side, y + slope)], fill=colour, width=rng.randint(3, 8) * side // 288)
    leaves = Pen(draw, (side, 0.0, 0.0, side, 0.0, 0.0))
    for _ in range(rng.randint(0, 6)):
        place = (rng.uniform(0, 1), rng.uniform(0, 1))
        colour = mix(rng.choice(_LEAVES), mix(top, bottom, 0.5), rng.uniform(0.15, 0.5))
        _leaf(leaves, place, rng.uniform(0.05, 0.1), rng.uniform(0, 360), colour)
    for _ in range(rng.choice((0, 0, 3, 6, 9))):
        _berry(rng, leaves, (rng.uniform(0, 1), rng.uniform(0, 1)), rng.uniform(0.012, 0.03))
    return canvas


def _perch(rng: random.Random, pen: Pen) -> None:
    bark = rng.choice(_BARK)
    rise, width = rng.uniform(-0.12, 0.12), rng.uniform(0.09, 0.15)
    ends = [(-2.4, 0.66 - rise), (0.05, 0.66), (2.4, 0.66 + rise * rng.uniform(-0.5, 1.5))]
    pen.stroke(ends, shade(bark, 0.75), width)
    pen.stroke([(x, y - width * 0.15) for x, y in ends], bark, width * 0.6)
    for _ in range(rng.randint(0, 3)):
        place = (rng.uniform(-1.2, 1.2), 0.66 + rng.uniform(-0.02, 0.1))
        _leaf(pen, place, rng.uniform(0.14, 0.26), rng.uniform(20, 160), rng.choice(_LEAVES))


def _leaf(pen: Pen, place: Point, length: float, angle: float, colour: Colour) -> None:
    x, y = place
    outline = [(0.0, 0.0), (0.35, -0.26), (0.75, -0.2), (1.0, 0.0), (0.75, 0.2), (0.35, 0.26)]
    turned = pen.turned(angle, place)
    turned.fill(smooth([(x + u * length, y + v * length) for u, v in outline], 3), colour)
    turned.stroke([(x, y), (x + 0.9 * length, y)], shade(colour, 0.75), 0.06 * length)


def _berry(rng: random.Random, pen: Pen, place: Point, radius: float) -> None:
    """Draw a berry or blossom in the colour of some mark, so that colour alone tells nothing."""
    colour = COLOURS[rng.choice(("red", "yellow", "white", "orange", "black"))]
    pen.fill(ellipse(place, radius, radius, 12), mix(colour, (120, 120, 110), rng.uniform(0, 0.4)))


def _hide(rng: random.Random, pen: Pen) -> None:
    """Lay leaves, twigs or berries over small parts of the bird, or nothing."""
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        kind = rng.random()
        place = (rng.uniform(-0.8, 0.7), rng.uniform(-0.6, 0.45))
        if kind < 0.5:
            _leaf(pen, place, rng.uniform(0.2, 0.38), rng.uniform(0, 360), rng.choice(_LEAVES))
        elif kind < 0.75:
            slope = rng.uniform(-1.5, 1.5)
            ends = [(place[0] - 2, place[1] - 2 * slope), (place[0] + 2, place[1] + 2 * slope)]
            pen.stroke(ends, rng.choice(_BARK), rng.uniform(0.04, 0.07))
        else:
            _berry(rng, pen, place, rng.uniform(0.04, 0.07))


def _light(rng: random.Random, size: int) -> NDArray[np.float32]:
    """Return (size, size, 4) float32: a gain per channel, and an offset common to all."""
    contrast, brightness = rng.uniform(0.7, 1.15), rng.uniform(-26, 20)
    angle, fall = rng.uniform(0, 2 * math.pi), rng.uniform(0.0, 0.22)
    axis = np.linspace(-0.5, 0.5, size, dtype=np.float32)
    slope = 1 + fall * (math.cos(angle) * axis[None, :] + math.sin(angle) * axis[:, None])
    cast = np.array([rng.uniform(0.92, 1.08) for _ in range(3)], dtype=np.float32)
    light = np.empty((size, size, 4), dtype=np.float32)
    light[..., :3] = slope[..., None] * cast * contrast
    light[..., 3] = 128 * (1 - contrast) + brightness
    return light


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

    There are 2 to 20,000 species; four in a row are a family of look-alikes. `size` is the side of
    an image, 16 to 1,024 pixels. Another seed draws other species and other scenes.
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
    names, marks = tuple(one.name for one in species), tuple(one.marks for one in species)

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
    known = {"species": "num_species", "images": "images_per_species", "test": "test_per_species"}
    known |= {"size": "size", "seed": "seed"}
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
    """Return (size, size) bool: where plumage has marks, those left plain included."""
    reader = images.reader
    if not isinstance(reader, PlumageReader):
        raise DataError(f"{images.name!r} is not plumage: only drawn birds have known marks.")
    mask = Image.new("1", (reader.size, reader.size))
    draw = ImageDraw.Draw(mask)
    for site in reader.picture(images.position(index)).sites:
        for shape in site.shapes:
            draw.polygon(list(shape), fill=1)
    return np.asarray(mask, dtype=np.bool_)


def write_plumage(folder: Path, dataset: Dataset) -> Path:
    """Write plumage as PNGs `train/<species>/<number>.png` and `test/...`; returns `folder`."""
    for images in (dataset.train, dataset.test):
        for index, name in enumerate(images.ids):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            images.read(index).save(path)
    return folder
