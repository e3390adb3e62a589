"""A gallery with what an audit looks for: copies, wrong labels, an outlier, no labels."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from made_up_galleries import make_own_store
from own_galleries import KINDS, add
from phpq.gallery import GalleryStore

EACH = 20  # images of a kind
WRONG = {"red/3.png": "blue", "green/5.png": "red", "blue/7.png": "grey"}  # labels they are given
COPY = ("green/0.png", "green/copy.jpg")  # the second is cropped from the first
EQUAL = ("blue/1.png", "blue/equal.png")
BARE = ("grey/8.png", "red/9.png")
STRANGE = "red/strange.png"


def texture(
    seed: int, colour: tuple[int, int, int], size: tuple[int, int] = (80, 60)
) -> Image.Image:
    """Draw soft spots over a colour: pictures of one kind that are not one picture."""
    generator = np.random.default_rng(seed)
    spots = Image.fromarray(generator.integers(0, 256, (12, 16), np.uint8)).resize(
        size, Image.Resampling.BICUBIC
    )
    grey = np.asarray(spots, np.float64)[:, :, None] - 128
    shade = np.asarray(colour) + generator.normal(0, 6, 3)
    return Image.fromarray(np.clip(shade + 0.35 * grey, 0, 255).astype(np.uint8))


def cropped(image: Image.Image, share: float = 0.9) -> Image.Image:
    """Cut a tenth of each side off, mostly at the left, and make it smaller."""
    width, height = image.size
    box = (
        round((1 - share) * width * 0.8),
        0,
        width - round((1 - share) * width * 0.2),
        round(share * height),
    )
    return image.crop(box).resize((round(0.7 * width), round(0.7 * height)))


def write_files(folder: Path) -> list[dict[str, object]]:
    """Write the pictures; returns what a gallery takes."""
    items: list[dict[str, object]] = []
    for kind_number, (kind, colour) in enumerate(KINDS.items()):
        (folder / kind).mkdir(parents=True)
        for number in range(EACH):
            name = f"{kind}/{number}.png"
            texture(100 * kind_number + number, colour).save(folder / name)
            label = None if name in BARE else WRONG.get(name, kind)
            items.append({"path": folder / name, "id": name, "label": label})
    with Image.open(folder / COPY[0]) as image:
        cropped(image).save(folder / COPY[1], quality=80)
    shutil.copy(folder / EQUAL[0], folder / EQUAL[1])
    texture(999, (250, 250, 20)).save(folder / STRANGE)
    more = (COPY[1], EQUAL[1], STRANGE)
    items += [{"path": folder / name, "id": name, "label": name.split("/")[0]} for name in more]
    return items


def doubtful(folder: Path, **settings: bool) -> GalleryStore:
    """Make the gallery in `folder`, and its pictures beside it."""
    items = write_files(folder.parent / "pictures")
    store = make_own_store(folder, **settings)
    add(store, items, batch_size=256)
    return store
