"""How the cells of a grid share one GPU: when compiling pays, who compiles first, and fair shares.

All numbers are of DSH with ResNet-18, 224 pixels, batches of 64, on one H200: docs/results/grid.md
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec

from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell

# Compiling takes half a minute. Alone it raises 9,600 images/s to 13,000, which wins that back
# after 1.1 million images. (Eight at once, in an earlier version: 12,300 to 14,800.)
IMAGES_TO_COMPILE = 1_500_000
# Of a GPU's multiprocessors, in per cent, summed over the processes. Eight that may take 30 each
# disturb each other less than eight that may take all: 20,000 images/s against 17,900.
SHARES = 240
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def images_to_learn(cell: Cell, gallery: int) -> int:
    """Count the images that a cell learns from, each as often as it is seen.

    Args:
        cell: What is to be run.
        gallery: Images of the training split.
    """
    if cell.kind == "shallow" or cell.config.method.features == "imagenet":
        return 0
    return gallery * remaining_config(cell.config).training.epochs


def compiling_pays(device: str, images: int) -> bool:
    """Tell whether backbones should be compiled: faster trainings after a slower start.

    Args:
        device: As resolved: "cpu", "cuda", "cuda:1" ...
        images: That all cells together learn from.
    """
    if not device.startswith("cuda") or images < IMAGES_TO_COMPILE:
        return False
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    return compiler is not None and find_spec("triton") is not None


class Compiling:
    """Decides which cells compile.

    If all processes compiled at first, the GPU would wait for a minute, and each would compile the
    same. So of the first cells only the shortest compiles, and fills the compiler's cache on disk;
    the others go without. Cells that start after its end all compile, from that cache.
    """

    def __init__(self, *, pays: bool, gallery: int) -> None:
        self.pays = pays
        self.gallery = gallery
        self.first = ""  # key of the cell that fills the cache

    def choose(self, cells: Iterable[Cell], ended: Collection[str]) -> Mapping[str, bool]:
        """Tell for each cell that starts now whether it compiles.

        Args:
            cells: That start at the same time.
            ended: Keys of all that ran, or failed.
        """
        learned = {cell.key: images_to_learn(cell, self.gallery) for cell in cells}
        learning = [key for key, images in learned.items() if images]
        if self.pays and learning and not self.first:
            self.first = min(learning, key=learned.__getitem__)
        warm = self.first in ended
        return {
            key: key in learning and self.pays and (warm or key == self.first) for key in learned
        }


def gpu_share(processes: int) -> dict[str, str]:
    """Return what a worker's environment says about its share of a GPU under MPS.

    It bounds a process even when the others have ended; without MPS it has no effect. What the user
    has set stays.
    """
    if processes <= 1 or MPS_SHARE in os.environ:
        return {}
    return {MPS_SHARE: str(min(100, max(1, SHARES // processes)))}
