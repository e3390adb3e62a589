"""Where training and evaluation find their pixels: resident on the device, or streamed.

Each process of several decodes a share of the images, and embeds a share. Resident pixels are
exchanged, so that each process has all that a batch may ask for; streamed ones are decoded by the
process that learns from them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages
from phpq.data.batches import PixelSource, ResidentPixels, StreamedPixels, fits_on
from phpq.model.method import Method
from phpq.model.retrieval import apply_to_images, apply_to_pixels, embed_images, embed_pixels
from phpq.training.decoding import decode_together
from phpq.training.distributed import ALONE, Group
from phpq.training.progress import Reporter

EMBED_BATCH = 256  # images embedded at once; large enough to fill a GPU


@dataclass(frozen=True, slots=True)
class TrainingPixels:
    """Both splits of a data set, as the loop reads them."""

    train: LabelledImages
    test: LabelledImages
    source: PixelSource  # of the training split
    resident: ResidentPixels | None  # the same, if it stays on the device
    embed_train: Callable[[Method], NDArray[np.float32]]
    embed_test: Callable[[Method], NDArray[np.float32]]
    # Runs a function of pixels in [0, 1] over the training split as it is encoded.
    apply_train: Callable[[Callable[[Tensor], Tensor]], Tensor]


def load_pixels(
    dataset: Dataset,
    config: RunConfig,
    *,
    device: torch.device,
    reporter: Reporter,
    cache: Path | None = None,
    group: Group = ALONE,
) -> TrainingPixels:
    """Decode a data set once and keep it on the device if it fits, else stream it."""
    side = config.data.store_size
    needed = (len(dataset.train) + len(dataset.test)) * 3 * side * side
    if device.type == "cpu":
        needed *= group.local_size  # which share its memory
    wanted = config.training.images_on_device
    config = _with_shared_cores(config, group)
    # One answer for all: both ways exchange embeddings, but at other moments.
    if wanted == "on" or (wanted == "auto" and group.every(fits_on(device, needed))):
        return _resident(
            dataset, config, device=device, reporter=reporter, cache=cache, group=group
        )
    return _streamed(dataset, config, device=device, reporter=reporter, group=group)


def _with_shared_cores(config: RunConfig, group: Group) -> RunConfig:
    """Give each process on a machine its share of the workers, where their number is open."""
    if group.local_size == 1 or config.training.workers:
        return config
    workers = max(1, (os.cpu_count() or 1) // group.local_size)
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, workers=workers)
    )


def _resident(
    dataset: Dataset,
    config: RunConfig,
    *,
    device: torch.device,
    reporter: Reporter,
    cache: Path | None,
    group: Group,
) -> TrainingPixels:
    workers = config.training.workers
    decoded = []
    for images in (dataset.train, dataset.test):
        with reporter.task(f"decoding {images.name}", len(images)) as advance:
            part = decode_together(
                images, config.data, group=group, workers=workers, progress=advance, cache=cache
            )
        reporter.skipped(part.skipped)
        decoded.append(part)
    train, test = decoded
    source = ResidentPixels(train.pixels, device)
    queries = ResidentPixels(test.pixels, device)

    batches: dict[str, Any] = {"batch_size": EMBED_BATCH, "whole_batches": device.type == "cuda"}

    def embed(network: Method, pixels: Tensor) -> NDArray[np.float32]:
        mine = pixels[group.rows(len(pixels))]
        part = embed_pixels(network, mine, config.data, **batches)
        return _gathered(part, len(pixels), group)

    def apply(function: Callable[[Tensor], Tensor]) -> Tensor:
        mine = source.pixels[group.rows(len(source.pixels))]
        part = apply_to_pixels(function, mine, config.data, device=device, **batches)
        return group.gather_rows(part, len(source.pixels))

    return TrainingPixels(
        train=train.images,
        test=test.images,
        source=source,
        resident=source,
        embed_train=lambda network: embed(network, source.pixels),
        embed_test=lambda network: embed(network, queries.pixels),
        apply_train=apply,
    )


def _streamed(
    dataset: Dataset, config: RunConfig, *, device: torch.device, reporter: Reporter, group: Group
) -> TrainingPixels:
    readable = []
    # One pass at one pixel each finds every bad file before training starts, in flat memory.
    probe = dataclasses.replace(config.data, store_size=1)
    for images in (dataset.train, dataset.test):
        with reporter.task(f"checking {images.name}", len(images)) as advance:
            part = decode_together(
                images, probe, group=group, workers=config.training.workers, progress=advance
            )
        reporter.skipped(part.skipped)
        readable.append(part.images)
    train, test = readable

    def embed(network: Method, images: LabelledImages) -> NDArray[np.float32]:
        part = embed_images(network, _share(images, group), config.data)
        return _gathered(part, len(images), group)

    def apply(function: Callable[[Tensor], Tensor]) -> Tensor:
        part = apply_to_images(function, _share(train, group), config.data, device=device)
        return group.gather_rows(part, len(train))

    return TrainingPixels(
        train=train,
        test=test,
        source=StreamedPixels(train, config.data, device=device, workers=config.training.workers),
        resident=None,
        embed_train=lambda network: embed(network, train),
        embed_test=lambda network: embed(network, test),
        apply_train=apply,
    )


def _share(images: LabelledImages, group: Group) -> LabelledImages:
    """Return the images that this process embeds."""
    if group.size == 1 or not len(images):
        return images
    return images.subset(np.arange(len(images))[group.rows(len(images))])


def _gathered(part: NDArray[np.float32], count: int, group: Group) -> NDArray[np.float32]:
    """Put the embeddings of all processes together: (count, D)."""
    if group.size == 1 or not count:
        return part
    return group.gather_rows(torch.from_numpy(part), count).numpy()
