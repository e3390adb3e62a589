"""What all cells of a process share: data set, device, folders; and what the machine is.

torch is imported only to name the hardware.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from phpq.data import Dataset, decode_all, hold_out, open_dataset
from phpq.reproduce.grid import Cell
from phpq.reproduce.store import Store


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all cells of a worker share."""

    store: Store  # where results go
    source: str  # what opens the data set
    facts: dict[str, Any]  # of the data set, see `Subject.facts`
    device: str  # "auto", "cpu", "cuda" ...
    cache: Path  # folder of decoded pixels
    home: Path | None = None  # where downloads are kept; None is the default
    commit: str = ""  # of the code
    processes: int = 1  # cells that run at once, for the record
    compiled: bool = False  # whether trainings that leave it open compile their backbones

    @property
    def weights(self) -> str:
        """Where the backbones start, by content."""
        return str(self.facts["weights"])

    def open(self) -> Dataset:
        """Open the data set, once per process."""
        return _open(self.source, self.home)


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
            if images.path(0) is not None:  # drawn images are not cached
                decode_all(images, data, cache=place.cache)


@lru_cache(maxsize=1)
def _open(source: str, home: Path | None) -> Dataset:
    return open_dataset(source, home=home)


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
