"""What all cells of a process share: data set, device, folders; and what the machine is.

torch is imported only to name the hardware.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phpq.data import Dataset, LabelledImages, decode_all, hold_out, open_dataset
from phpq.reproduce.grid import Cell
from phpq.reproduce.store import Store

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all cells of a worker share.

    Attributes:
        store: Where results go.
        source: What opens the data set.
        facts: Of the data set, see `Subject.facts`.
        device: "auto", "cpu", "cuda" ...
        cache: Folder of decoded pixels.
        home: Where downloads are kept; None is the default.
        commit: Of the code; may be empty.
        processes: Cells that run at once, for the record.
        compiled: Whether trainings that leave it open compile their backbones.
    """

    store: Store
    source: str
    facts: dict[str, Any]
    device: str
    cache: Path
    home: Path | None = None
    commit: str = ""
    processes: int = 1
    compiled: bool = False

    @property
    def weights(self) -> str:
        """Where the backbones start, by content."""
        return str(self.facts["weights"])

    def open(self) -> Dataset:
        """Open the data set, once a process."""
        return _opened(self.source, self.home)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for a worker process."""
        return {
            "folder": str(self.store.folder),
            "source": self.source,
            "facts": self.facts,
            "device": self.device,
            "cache": str(self.cache),
            "home": None if self.home is None else str(self.home),
            "commit": self.commit,
            "processes": self.processes,
            "compiled": self.compiled,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Workplace:
        """Read what `to_dict` wrote."""
        home = data["home"]
        return cls(
            store=Store(Path(data["folder"])),
            source=data["source"],
            facts=data["facts"],
            device=data["device"],
            cache=Path(data["cache"]),
            home=None if home is None else Path(home),
            commit=data["commit"],
            processes=data["processes"],
            compiled=data["compiled"],
        )


def decode_once(cells: Sequence[Cell], place: Workplace) -> None:
    """Decode the data set into the cache, once for each way in which cells want it."""
    wanted = {
        (data.store_size, data.fit, data.max_pixels, data.holdout_per_class): data
        for data in (cell.config.data for cell in cells)
    }
    for data in wanted.values():
        dataset = place.open()
        if data.holdout_per_class:
            dataset = hold_out(dataset, data.holdout_per_class, seed=0)
        for images in (dataset.train, dataset.test):
            if images.path(0) is not None:  # drawn images are drawn once a process
                decode_all(images, data, cache=place.cache)


@dataclass(frozen=True, slots=True)
class _DrawnImages:
    """Images that were drawn before: every cell reads them again."""

    images: tuple[Image, ...]

    def read(self, index: int) -> Image:
        return self.images[index]


@lru_cache(maxsize=1)
def _opened(source: str, home: Path | None) -> Dataset:
    """Open a data set once a process; what is drawn is drawn once."""
    dataset = open_dataset(source, home=home)
    if not source.startswith("plumage:"):
        return dataset

    def drawn(split: LabelledImages) -> LabelledImages:
        images = tuple(split.read(index) for index in range(len(split)))
        return replace(split, reader=_DrawnImages(images))

    return replace(dataset, train=drawn(dataset.train), test=drawn(dataset.test))


@lru_cache(maxsize=1)
def hardware(device: str) -> dict[str, Any]:
    """Say where the numbers come from."""
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "cpu": _processor(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
