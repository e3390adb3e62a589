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

from phpq.config import DataConfig, RunConfig
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
    # One answer for all: both ways exchange embeddings, but at other moments.
    stays = wanted == "on" or (wanted == "auto" and group.every(fits_on(device, needed)))
    workers = config.training.workers
    if not workers and group.local_size > 1:
        workers = max(1, (os.cpu_count() or 1) // group.local_size)
    # One pass at one pixel each finds every bad file before streaming starts, in flat memory.
    stored = config.data if stays else dataclasses.replace(config.data, store_size=1)
    decoded = []
    for images in (dataset.train, dataset.test):
        title = f"{'decoding' if stays else 'checking'} {images.name}"
        with reporter.task(title, len(images)) as advance:
            part = decode_together(
                images,
                stored,
                group=group,
                workers=workers,
                progress=advance,
                cache=cache if stays else None,
            )
        reporter.skipped(part.skipped)
        decoded.append(part)
    train, test = decoded
    resident = ResidentPixels(train.pixels, device) if stays else None
    source = resident or StreamedPixels(train.images, config.data, device=device, workers=workers)
    gallery = resident.pixels if resident else train.images
    queries = ResidentPixels(test.pixels, device).pixels if stays else test.images
    reader = _Reader(config.data, device, group)
    return TrainingPixels(
        train=train.images,
        test=test.images,
        source=source,
        resident=resident,
        embed_train=lambda network: reader.embed(network, gallery),
        embed_test=lambda network: reader.embed(network, queries),
        apply_train=lambda function: reader.apply(function, gallery),
    )


class _Reader:
    """Looks at images as they are encoded, of which each process takes a share."""

    def __init__(self, config: DataConfig, device: torch.device, group: Group) -> None:
        self.config, self.device, self.group = config, device, group
        self.batches: Any = {"batch_size": EMBED_BATCH, "whole_batches": device.type == "cuda"}

    def embed(self, network: Method, images: Tensor | LabelledImages) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of decoded pixels, or of images that are read now."""
        mine = self._share(images)
        if isinstance(mine, Tensor):
            part = embed_pixels(network, mine, self.config, **self.batches)
        else:
            part = embed_images(network, mine, self.config)
        if self.group.size == 1 or not len(images):
            return part
        return self.group.gather_rows(torch.from_numpy(part), len(images)).numpy()

    def apply(
        self, function: Callable[[Tensor], Tensor], images: Tensor | LabelledImages
    ) -> Tensor:
        """Return the results (N, ...) of a function of pixels in [0, 1]."""
        mine = self._share(images)
        if isinstance(mine, Tensor):
            part = apply_to_pixels(function, mine, self.config, device=self.device, **self.batches)
        else:
            part = apply_to_images(function, mine, self.config, device=self.device)
        return self.group.gather_rows(part, len(images))

    def _share(self, images: Tensor | LabelledImages) -> Tensor | LabelledImages:
        if self.group.size == 1 or not len(images):
            return images
        rows = self.group.rows(len(images))
        if isinstance(images, Tensor):
            return images[rows]
        return images.subset(np.arange(len(images))[rows])
