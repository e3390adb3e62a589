"""When compiling a grid's backbones pays, which cells compile, and when. No torch.

All numbers are of DSH with ResNet-18, 224 pixels, batches of 64, on one H200: docs/results/grid.md
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from phpq.recipes import remaining_config
from phpq.reproduce.grid import Cell

# Compiling takes half a minute. Alone it raises 9,600 images/s to 13,000, which wins that back
# after 1.1 million images. (Eight at once, in an earlier version: 12,300 to 14,800.)
IMAGES_TO_COMPILE = 1_500_000
# Going over to compiled steps takes its time: of three alike trainings, eight at once, the one that
# did so with 27 % of its epochs left took 77 s, the others 72 and 73.
WORTH_COMPILING = 0.5
# Methods that compile more than the backbone; whoever has the same backbone finds it compiled.
_COMPILE_MORE = ("phpq", "srlh")


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


@dataclass(frozen=True, slots=True)
class Order:
    """How a cell is to take its steps.

    Attributes:
        compiled: Whether they are compiled from the first one on.
        filled: A file that says that the compiler's cache on disk holds what the cell needs. A cell
            that compiles makes it; one that does not goes over to compiled steps once it is there.
            None: the cell never compiles, or need not say so.
    """

    compiled: bool = False
    filled: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for a worker process."""
        return {
            "compiled": self.compiled,
            "filled": None if self.filled is None else str(self.filled),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Order:
        """Read what `to_dict` wrote."""
        filled = data["filled"]
        return cls(data["compiled"], None if filled is None else Path(filled))


@dataclass(slots=True)
class _Family:
    """Cells whose backbones a compiler turns into the same code."""

    filled: Path
    first: str = ""  # key of the cell that fills the cache


class Compiling:
    """Decides which cells compile, and when.

    If all processes compiled at first, the GPU would wait for a minute, and each would compile the
    same. So of the cells with the same backbone and batch one compiles, and fills the compiler's
    cache on disk. The others take plain steps until then; what starts later finds the cache.
    """

    def __init__(self, *, pays: bool, gallery: int, folder: Path) -> None:
        self.pays = pays
        self.gallery = gallery
        self.folder = folder  # for files of this run alone
        self.families: dict[Hashable, _Family] = {}

    def choose(self, cells: Iterable[Cell], ended: Collection[str]) -> Mapping[str, Order]:
        """Tell for each cell that starts now how it takes its steps.

        Args:
            cells: That start at the same time.
            ended: Keys of all that ran, or failed.
        """
        orders: dict[str, Order] = {}
        relatives: dict[Hashable, list[Cell]] = {}
        for cell in cells:
            orders[cell.key] = Order()
            if self.pays and images_to_learn(cell, self.gallery):
                relatives.setdefault(_family(cell), []).append(cell)
        for name, members in relatives.items():
            family = self.families.setdefault(name, _Family(self.folder / str(len(self.families))))
            is_filled = family.filled.exists()
            # A first cell that starts again died, or failed, before it had filled the cache.
            absent = not family.first or family.first in {*ended, *orders}
            if absent and not is_filled:
                family.first = min(members, key=self._rank).key
            for cell in members:
                compiled = is_filled or cell.key == family.first
                orders[cell.key] = Order(compiled, family.filled)
        return orders

    def _rank(self, cell: Cell) -> tuple[bool, int]:
        """Sort those first that compile most, then those that are over soonest."""
        more = cell.config.method.name in _COMPILE_MORE
        return not more, images_to_learn(cell, self.gallery)


def _family(cell: Cell) -> Hashable:
    config = cell.config
    training = config.training
    return config.model, config.data.crop_size, training.batch_size, training.precision


class Compilable(Protocol):
    """A `Trainer`, as this file knows it."""

    def compile(self) -> None:
        """Go over to compiled steps."""


class StepCompiler:
    """Follows an `Order` in a worker, from epoch to epoch."""

    def __init__(self, order: Order, trainer: Compilable, epochs: int) -> None:
        self.order = order
        self.trainer = trainer
        self.epochs = epochs
        self.compiled_from = 0 if order.compiled else None  # epoch; None: not compiled

    def before(self, epoch: int) -> None:
        """Say that the cache is filled, or make use of it.

        Args:
            epoch: That is about to begin, from 0.
        """
        filled = self.order.filled
        if filled is None:
            return
        if self.compiled_from == 0 and epoch == 1:
            filled.touch()
        worth = self.epochs - epoch >= WORTH_COMPILING * self.epochs
        if self.compiled_from is None and worth and filled.exists():
            self.trainer.compile()
            self.compiled_from = epoch

    def facts(self) -> dict[str, Any]:
        """Say whether steps were compiled, and after how many epochs if not from the first on."""
        epochs = self.compiled_from
        later = {"compiled_after_epochs": epochs} if epochs else {}
        return {"compiled": epochs is not None, **later}
