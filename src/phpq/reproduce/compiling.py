"""Which cells of a grid compile their backbones. No torch."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from importlib.util import find_spec

from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell

# Compiling takes half a minute. Alone it raises 9,600 images/s to 13,000, which wins that back
# after 1.1 million images (DSH with ResNet-18, 224 pixels, batches of 64, on one H200:
# docs/results/grid.md).
IMAGES_TO_COMPILE = 1_500_000
# Methods whose backbones return more than the last level, each its own choice of them.
_OWN_LEVELS = ("phpq", "fph", "srlh", "exchnet")


def images_to_learn(cell: Cell, gallery: int) -> int:
    """Count the images that a cell learns from, each as often as it is seen.

    Args:
        cell: What is to be run.
        gallery: Images of the training split.
    """
    if cell.kind == "shallow" or cell.config.method.features == "imagenet":
        return 0
    return gallery * remaining_config(cell.config).training.epochs


def can_compile(device: str) -> bool:
    """Tell whether backbones can be compiled on a device: "cpu", "cuda", "cuda:1" ..."""
    if not device.startswith("cuda"):
        return False
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    return compiler is not None and find_spec("triton") is not None


class Compiling:
    """Decides which cells compile.

    Cells that come to the same code form a family. A family compiles if its cells together learn
    from enough images to win that back. If all processes compiled at first, the GPU would wait for
    a minute, and each would compile the same. So of the first cells of a family only the shortest
    compiles, and fills the compiler's cache on disk; the others go without. Cells that start after
    its end all compile, from that cache.
    """

    def __init__(self, cells: Iterable[Cell], *, device: str, gallery: int) -> None:
        """Look over the cells that are to be run.

        Args:
            cells: All of them.
            device: As resolved.
            gallery: Images of the training split.
        """
        self.gallery = gallery
        images: Counter[Hashable] = Counter()
        if can_compile(device):
            for cell in cells:
                images[_code_of(cell)] += images_to_learn(cell, gallery)
        # Family -> key of the cell that fills the cache.
        self.first = {code: "" for code, count in images.items() if count >= IMAGES_TO_COMPILE}

    def choose(self, cells: Sequence[Cell], ended: Collection[str]) -> Mapping[str, bool]:
        """Tell for each cell that starts now whether it compiles.

        Args:
            cells: That start at the same time.
            ended: Keys of all that ran, or failed.
        """
        compiled = dict.fromkeys((cell.key for cell in cells), False)
        for code, first in self.first.items():
            members = {
                cell.key: images
                for cell in cells
                if _code_of(cell) == code and (images := images_to_learn(cell, self.gallery))
            }
            if members and not first:
                self.first[code] = min(members, key=members.__getitem__)
            for key in members:
                compiled[key] = first in ended or key == self.first[code]
        return compiled


def _code_of(cell: Cell) -> Hashable:
    """Return what decides of the code that a compiler makes of a cell's backbone."""
    config, training = cell.config, cell.config.training
    name = config.method.name if cell.kind == "training" else ""
    levels = name if name in _OWN_LEVELS else ""
    return levels, config.model, config.data.crop_size, training.batch_size, training.precision
