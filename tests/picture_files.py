"""Small image files and labelled sets for the tests of `phpq.data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from phpq.data import LabelledImages


def write_image(path: Path, colour: tuple[int, int, int] = (200, 30, 60), side: int = 12) -> Path:
    """Write a plain image and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), colour).save(path)
    return path


def write_classes(root: Path, sizes: dict[str, int]) -> Path:
    """Write `sizes[name]` images of each class under root/name/ and return root."""
    for number, (name, size) in enumerate(sizes.items()):
        for i in range(size):
            write_image(root / name / f"{i}.png", (number * 40 % 256, i * 7 % 256, 90))
    return root


@dataclass(frozen=True)
class PlainReader:
    """Yields images whose red value is their position."""

    def read(self, index: int) -> Image.Image:
        return Image.new("RGB", (4, 4), (index % 256, 0, 0))


def plain_images(labels: list[int], names: tuple[str, ...], prefix: str = "i") -> LabelledImages:
    """Build a set without files, one image a label."""
    ids = tuple(f"{prefix}{i}" for i in range(len(labels)))
    return LabelledImages(prefix, ids, np.array(labels, dtype=np.int64), names, PlainReader())
