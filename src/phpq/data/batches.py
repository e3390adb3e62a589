"""Which images make up each step of an epoch, and how their pixels get to the device.

`plan_epoch` is a pure function of (seed, epoch): a resumed run sees exactly the batches that an
uninterrupted one would have seen. Pixels come from a tensor that stays on the device, or, where the
data set does not fit, from worker processes that decode as training goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from phpq.config import DataConfig, TrainingConfig
from phpq.data.augment import draw_augmentations
from phpq.data.decode import decode_square
from phpq.data.images import LabelledImages


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The images of every step of one epoch and the parameters of their augmentation."""

    indices: NDArray[np.int64]  # (steps, B)
    parameters: NDArray[np.float32]  # (steps, B, 8)


def steps_per_epoch(num_images: int, batch_size: int) -> int:
    """Count full batches; the remainder of a shuffle waits for another epoch."""
    return max(1, num_images // batch_size)


def plan_epoch(
    labels: NDArray[np.int64], epoch: int, *, data: DataConfig, training: TrainingConfig
) -> EpochPlan:
    """Draw the batches and augmentations of one epoch, for images of (N,) labels."""
    generator = np.random.default_rng([training.seed, epoch])
    steps = steps_per_epoch(len(labels), training.batch_size)
    shape = (steps, training.batch_size)
    if training.sampler == "classes":
        order = _by_classes(generator, labels, shape, training.images_per_class)
    else:
        # A set smaller than one batch is repeated to fill it: every batch has the same shape.
        repeats = -(-training.batch_size // len(labels))
        rounds = [generator.permutation(len(labels)) for _ in range(repeats)]
        order = np.concatenate(rounds)[: steps * training.batch_size]
    parameters = draw_augmentations(generator, order.size, data)
    return EpochPlan(order.reshape(shape).astype(np.int64), parameters.reshape(*shape, -1))


def _by_classes(
    generator: np.random.Generator,
    labels: NDArray[np.int64],
    shape: tuple[int, int],
    per_class: int,
) -> NDArray[np.int64]:
    """Fill each batch with `per_class` images of each of several random classes."""
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    batches = []
    for _ in range(shape[0]):
        classes = shape[1] // per_class
        chosen = generator.choice(len(members), classes, replace=len(members) < classes)
        picks = [
            generator.choice(members[c], per_class, replace=len(members[c]) < per_class)
            for c in chosen
        ]
        batches.append(np.concatenate(picks))
    return np.concatenate(batches)


class PixelSource(Protocol):
    """Gives the stored squares of the images of each step."""

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield (B, 3, S, S) uint8 on the device for each row of (steps, B) indices."""


class ResidentPixels:
    """All decoded images in one tensor on the device."""

    def __init__(self, pixels: NDArray[np.uint8], device: torch.device) -> None:
        # A memory-mapped cache is read-only; torch wants to own what it wraps.
        self.pixels = torch.tensor(pixels).to(device)

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Gather each step's images."""
        rows = torch.from_numpy(indices).to(self.pixels.device)
        for row in rows:
            yield self.pixels[row]


class StreamedPixels:
    """Images decoded by worker processes while the device trains."""

    def __init__(
        self, images: LabelledImages, config: DataConfig, *, device: torch.device, workers: int
    ) -> None:
        self.device = device
        self.planned: list[list[int]] = []  # the rows of the current epoch's plan
        workers = workers or (os.cpu_count() or 1)
        # The workers outlive an epoch: starting them takes long.
        self.loader: DataLoader[Tensor] = DataLoader(
            _SquareDataset(images, config),
            batch_sampler=self.planned,
            num_workers=workers,
            persistent_workers=True,
            pin_memory=device.type == "cuda",
            multiprocessing_context="spawn",
        )

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Decode each step's images ahead of time, in order."""
        self.planned[:] = indices.tolist()
        for batch in self.loader:
            yield batch.to(self.device, non_blocking=True)


class _SquareDataset(TorchDataset[Tensor]):
    def __init__(self, images: LabelledImages, config: DataConfig) -> None:
        self.images = images
        self.config = config

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        # The same door as for resident pixels: both see the same image to the bit.
        source = self.images.path(index) or self.images.read(index)
        return torch.from_numpy(decode_square(source, self.config, name=self.images.ids[index]))


def fits_on(device: torch.device, num_bytes: int) -> bool:
    """Tell whether that many bytes may stay on the device beside the training itself."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return num_bytes < 0.5 * free
    if "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return num_bytes < 1 << 30  # this system does not say what is free
    return num_bytes < 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
