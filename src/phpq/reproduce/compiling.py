"""Which cells of a grid compile their backbones. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Sequence
from importlib.util import find_spec

from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell

# Compiling takes half a minute. Alone it raises 9,500 images/s to 14,700, which wins that back
# after 0.8 million images (DSH with ResNet-18, 224 pixels, batches of 64, on one H200:
# docs/results/grid.md). SRLH's own code took 50 s.
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
    from enough images to win that back. One by one, its first cell compiles for all of them. If
    cells run at once, each would compile the same while the GPU waits: instead a further process
    compiles for each family beforehand, into the compiler's cache on disk. Cells that start before
    it has go without; those that start later compile from that cache.
    """

    def __init__(
        self, cells: Sequence[Cell], *, device: str, gallery: int, processes: int = 1
    ) -> None:
        """Look over the cells that are to be run.

        Args:
            cells: All of them, in their order.
            device: As resolved.
            gallery: Images of the training split.
            processes: Cells at once; 0 is as 1.
        """
        self.gallery = gallery
        # What is to be compiled beforehand, each by the first cell that wants it.
        self.beforehand: list[Cell] = []
        # The code that cells which start now compile.
        self.ready: set[Hashable] = set()
        if not can_compile(device):
            return
        if processes <= 1:
            self.ready = set(self._families(cells, enough=IMAGES_TO_COMPILE))
            return
        # The first ones are on their way before anything is compiled.
        first = [cell.key for cell in cells if not cell.features][:processes]
        later = [cell for cell in cells if cell.key not in first]
        # Compiling takes one of them so long, and the others go on.
        families = self._families(later, enough=IMAGES_TO_COMPILE / processes)
        most_first = sorted(families.values(), key=self._images_of, reverse=True)
        self.beforehand = [family[0] for family in most_first]

    def ended(self, *, well: bool) -> Cell:
        """Take the first cell off `beforehand`; if all went well, its code is in the cache."""
        cell = self.beforehand.pop(0)
        if well:
            self.ready.add(_code_of(cell))
        return cell

    def is_awaited(self, cell: Cell) -> bool:
        """Tell whether a cell that starts later will compile, but one that starts now does not."""
        return _code_of(cell) in map(_code_of, self.beforehand) and self._may_compile(cell)

    def compiles(self, cell: Cell) -> bool:
        """Tell whether a cell that starts now compiles."""
        return self._may_compile(cell) and _code_of(cell) in self.ready

    def _families(self, cells: Sequence[Cell], *, enough: float) -> dict[Hashable, list[Cell]]:
        """Return the cells that compile if they learn from `enough` images together, by code."""
        families: dict[Hashable, list[Cell]] = {}
        for cell in cells:
            if self._may_compile(cell):
                families.setdefault(_code_of(cell), []).append(cell)
        return {c: family for c, family in families.items() if self._images_of(family) >= enough}

    def _images_of(self, family: Sequence[Cell]) -> int:
        return sum(images_to_learn(cell, self.gallery) for cell in family)

    def _may_compile(self, cell: Cell) -> bool:
        wanted = cell.config.training.accelerate in ("auto", "full")
        return wanted and images_to_learn(cell, self.gallery) > 0


def _code_of(cell: Cell) -> Hashable:
    """Return what decides of the code that a compiler makes of a cell's backbone."""
    config, training = cell.config, cell.config.training
    name = config.method.name if cell.kind == "training" else ""
    levels = name if name in _OWN_LEVELS else ""
    return levels, config.model, config.data.crop_size, training.batch_size, training.precision
