"""Where training and evaluation find their pixels: resident on the device, or streamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages, decode_all
from phpq.data.batches import PixelSource, ResidentPixels, StreamedPixels, fits_on
from phpq.model.method import Method
from phpq.model.retrieval import apply_to_images, apply_to_pixels, embed_images, embed_pixels
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
) -> TrainingPixels:
    """Decode a data set once and keep it on the device if it fits, else stream it."""
    side = config.data.store_size
    needed = (len(dataset.train) + len(dataset.test)) * 3 * side * side
    wanted = config.training.images_on_device
    if wanted == "on" or (wanted == "auto" and fits_on(device, needed)):
        return _resident(dataset, config, device=device, reporter=reporter, cache=cache)
    return _streamed(dataset, config, device=device, reporter=reporter)


def _resident(
    dataset: Dataset,
    config: RunConfig,
    *,
    device: torch.device,
    reporter: Reporter,
    cache: Path | None,
) -> TrainingPixels:
    workers = config.training.workers
    decoded = []
    for images in (dataset.train, dataset.test):
        with reporter.task(f"decoding {images.name}", len(images)) as advance:
            part = decode_all(images, config.data, workers=workers, progress=advance, cache=cache)
        reporter.skipped(part.skipped)
        decoded.append(part)
    train, test = decoded
    source = ResidentPixels(train.pixels, device)
    queries = ResidentPixels(test.pixels, device)
    return TrainingPixels(
        train=train.images,
        test=test.images,
        source=source,
        resident=source,
        embed_train=lambda network: embed_pixels(
            network, source.pixels, config.data, batch_size=EMBED_BATCH
        ),
        embed_test=lambda network: embed_pixels(
            network, queries.pixels, config.data, batch_size=EMBED_BATCH
        ),
        apply_train=lambda function: apply_to_pixels(
            function, source.pixels, config.data, device=device, batch_size=EMBED_BATCH
        ),
    )


def _streamed(
    dataset: Dataset, config: RunConfig, *, device: torch.device, reporter: Reporter
) -> TrainingPixels:
    readable = []
    # One pass at one pixel each finds every bad file before training starts, in flat memory.
    probe = dataclasses.replace(config.data, store_size=1)
    for images in (dataset.train, dataset.test):
        with reporter.task(f"checking {images.name}", len(images)) as advance:
            part = decode_all(images, probe, workers=config.training.workers, progress=advance)
        reporter.skipped(part.skipped)
        readable.append(part.images)
    train, test = readable
    return TrainingPixels(
        train=train,
        test=test,
        source=StreamedPixels(train, config.data, device=device, workers=config.training.workers),
        resident=None,
        embed_train=lambda network: embed_images(network, train, config.data),
        embed_test=lambda network: embed_images(network, test, config.data),
        apply_train=lambda function: apply_to_images(function, train, config.data, device=device),
    )
