"""The batches of an epoch: which images, how they get to the device, and their augmentation.

`plan_epoch` is a pure function of (seed, epoch), a training crop one of (pixels, parameters): a
resumed run sees the same batches as an uninterrupted one. Pixels stay on the device, or come from
worker processes if they do not fit. Encoding sees a fixed centre view.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from phpq.config import DataConfig, TrainingConfig
from phpq.data.decode import decode_square
from phpq.data.images import LabelledImages

PARAMETERS = 8  # centre x, centre y, width, height, mirror, brightness, contrast, saturation


def draw_augmentations(
    generator: np.random.Generator, count: int, config: DataConfig
) -> NDArray[np.float32]:
    """Draw the parameters of training crops: (count, 8) float32.

    Centre x, y and size w, h as shares of the side; mirror +1 or -1; factors of brightness,
    contrast and saturation.
    """
    limit = np.log(config.crop_ratio)
    width = height = np.full(count, np.inf)
    for _ in range(10):  # redraw crops that do not fit, as torchvision does; then clip
        again = (width > 1) | (height > 1)
        area = generator.uniform(config.crop_scale, 1, count)
        ratio = np.exp(generator.uniform(-limit, limit, count))
        width = np.where(again, np.sqrt(area * ratio), width)
        height = np.where(again, np.sqrt(area / ratio), height)
    width, height = np.minimum(width, 1), np.minimum(height, 1)
    centre_x = generator.uniform(width / 2, 1 - width / 2)
    centre_y = generator.uniform(height / 2, 1 - height / 2)
    mirror = np.where(generator.random(count) < 0.5, -1.0, 1.0) if config.flip else np.ones(count)
    colour = generator.uniform(1 - config.jitter, 1 + config.jitter, (3, count))
    drawn = np.stack([centre_x, centre_y, width, height, mirror, *colour], axis=1)
    return drawn.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Views:
    """Turns stored squares into training and encoding views."""

    config: DataConfig

    def train(self, pixels: Tensor, parameters: Tensor) -> Tensor:
        """Crop, mirror and colour squares (B, 3, S, S) uint8 by (B, 8) of `draw_augmentations`.

        Returns (B, 3, crop_size, crop_size) float32 in [0, 1].
        """
        size = self.config.crop_size
        images = cut_boxes(pixels.float(), crop_boxes(parameters), (size, size)) / 255
        return _colour(images, parameters[:, 5:]) if self.config.jitter else images

    def encode(self, pixels: Tensor) -> Tensor:
        """Take the fixed centre view of stored squares: (B, 3, E, E) float32 in [0, 1]."""
        side = pixels.shape[-1]
        kept = max(1, round(side * self.config.eval_crop))
        start = (side - kept) // 2
        images = pixels[..., start : start + kept, start : start + kept].float() / 255
        size = self.config.eval_size
        if kept == size:
            return images
        return F.interpolate(
            images, size=(size, size), mode="bilinear", align_corners=False, antialias=True
        ).clamp(0, 1)


def crop_boxes(parameters: Tensor) -> Tensor:
    """Return the boxes (B, 4) for `cut_boxes` of (B, 8) of `draw_augmentations`."""
    x, y, width, height, mirror = parameters[:, :5].unbind(1)
    # The stored square is [-1, 1]^2; a negative half width mirrors x.
    return torch.stack([2 * x - 1, 2 * y - 1, width * mirror, height], 1)


def cut_boxes(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample a box from each of (B, C, H, W) float images, bilinear, with border padding.

    Boxes (B, 4) are centre x, y and half the width and height, the image being [-1, 1]^2; a
    negative half mirrors. Differentiable in the boxes. Returns (B, C, *size), a height and a width.
    """
    height, width = size
    x, y, half_width, half_height = boxes.unbind(1)
    columns = x[:, None] + half_width[:, None] * cell_centres(width, boxes.device)
    rows = y[:, None] + half_height[:, None] * cell_centres(height, boxes.device)
    # Not `affine_grid`, whose matrix products take longer than the sampling itself.
    places = (columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width))
    grid = torch.stack(places, 3)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def cell_centres(count: int, device: torch.device) -> Tensor:
    """Return the centres (count,) float32 of the equal cells of [-1, 1]."""
    return (2 * torch.arange(count, device=device) + 1) / count - 1


def _colour(images: Tensor, factors: Tensor) -> Tensor:
    """Scale brightness, contrast about the mean, and saturation about the grey image."""
    brightness, contrast, saturation = (f.view(-1, 1, 1, 1) for f in factors.unbind(1))
    images = images * brightness
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * contrast
    # Scalars: a tensor of weights would be copied to the device, which a CUDA graph cannot do.
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    return (grey + (images - grey) * saturation).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The images of every step of one epoch and the parameters of their augmentation."""

    indices: NDArray[np.int64]  # (steps, B)
    parameters: NDArray[np.float32]  # (steps, B, 8)


def steps_per_epoch(num_images: int, batch_size: int) -> int:
    """Count full batches; the remainder of a shuffle is dropped."""
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
        # A set smaller than one batch is repeated: every batch has the same shape.
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
    """Yields the stored squares of each step."""

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield (B, 3, S, S) uint8 on the device for each row of (steps, B) indices."""


class ResidentPixels:
    """All decoded images in one tensor on the device."""

    def __init__(self, pixels: NDArray[np.uint8], device: torch.device) -> None:
        # A copy: torch warns about read-only memory, such as a memory-mapped cache.
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
        # As for resident pixels, so that both see the same pixels to the bit.
        source = self.images.path(index) or self.images.read(index)
        return torch.from_numpy(decode_square(source, self.config, name=self.images.ids[index]))


def fits_on(device: torch.device, num_bytes: int) -> bool:
    """Tell whether that many bytes fit on the device beside the training itself."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return num_bytes < 0.5 * free
    if "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return num_bytes < 1 << 30  # the free memory is unknown on this system
    return num_bytes < 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
