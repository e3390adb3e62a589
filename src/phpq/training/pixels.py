"""The pixels of training and evaluation: resident on the device, or streamed.

Each of several processes decodes and embeds a share of the images. Resident pixels are exchanged,
so that each process has all; streamed ones are decoded by the process that learns from them.
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
from phpq.data import Dataset, DecodedImages, LabelledImages, Splits, decode_all
from phpq.data.batches import PixelSource, ResidentPixels, StreamedPixels, Views, fits_on
from phpq.data.decode import accept_readable, decode_readable
from phpq.data.pixel_cache import StoredPixels, find_entry
from phpq.model.method import Method
from phpq.model.retrieval import apply_to_images, apply_to_pixels, embedding_function
from phpq.training.distributed import ALONE, Group
from phpq.training.progress import Advance, Reporter

EMBED_BATCH = 256  # images embedded at once; large enough to fill a GPU
BLOCK_BYTES = 64 << 20  # pixels that a process sends at once


@dataclass(frozen=True, slots=True)
class TrainingPixels:
    """Both splits of a data set, as the loop reads them; each process embeds a share."""

    train: LabelledImages
    test: LabelledImages
    source: PixelSource  # of the training split
    resident: ResidentPixels | None  # the same, if it stays on the device
    # (N, 3, S, S) uint8 if they stay on the device, else None; or features (N, F) for `views`
    train_pixels: Any
    test_pixels: Any
    views: Views
    config: DataConfig
    device: torch.device
    group: Group

    def embed_train(self, network: Method) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of the training split."""
        function = embedding_function(network, self.config)
        return self.apply_train(function).cpu().numpy()

    def embed_test(self, network: Method) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of the test split, which may be empty."""
        if not len(self.test):
            return np.empty((0, network.embedding_dim), np.float32)
        function = embedding_function(network, self.config)
        return self._apply(function, self.test, self.test_pixels).cpu().numpy()

    def apply_train(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the results (N, ...) of a function of pixels in [0, 1], as they are encoded."""
        return self._apply(function, self.train, self.train_pixels)

    def _apply(
        self, function: Callable[[Tensor], Tensor], images: LabelledImages, pixels: Any
    ) -> Tensor:
        rows = self.group.rows(len(images))
        if pixels is None:
            mine = images.subset(np.arange(len(images))[rows]) if self.group.size > 1 else images
            part = apply_to_images(function, mine, self.config, device=self.device)
        else:
            part = apply_to_pixels(
                function,
                pixels[rows] if self.group.size > 1 else pixels,
                self.config,
                device=self.device,
                batch_size=EMBED_BATCH,
                whole_batches=self.device.type == "cuda",
                views=self.views,
            )
        return self.group.gather_rows(part, len(images))


def load_pixels(
    dataset: Dataset | Splits,
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
    # All processes must agree: they exchange data at other moments in either case.
    stays = wanted == "on" or (wanted == "auto" and group.every(fits_on(device, needed)))
    workers = config.training.workers
    if not workers and group.local_size > 1:
        workers = max(1, (os.cpu_count() or 1) // group.local_size)
    # Before streaming, decode all images to one pixel each: that finds every bad file.
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
    return TrainingPixels(
        train=train.images,
        test=test.images,
        source=resident
        or StreamedPixels(train.images, config.data, device=device, workers=workers),
        resident=resident,
        train_pixels=resident.pixels if resident else None,
        test_pixels=ResidentPixels(test.pixels, device).pixels if stays else None,
        views=Views(config.data),
        config=config.data,
        device=device,
        group=group,
    )


def decode_together(
    images: LabelledImages,
    config: DataConfig,
    *,
    group: Group,
    workers: int = 0,
    progress: Advance | None = None,
    cache: Path | None = None,
) -> DecodedImages:
    """Decode a set as `decode_all` does, each process a share; all processes get all pixels.

    Results and errors are the same in every process, and those of a single one. A cache is used if
    every process finds it; otherwise the first one writes it, for the next time.
    """
    if group.size == 1 or not len(images):
        return decode_all(images, config, workers=workers, progress=progress, cache=cache)
    entry = find_entry(cache, images, config) if cache is not None else None
    stored = entry.load() if entry else None
    if not group.every(stored is not None):  # all or none, since decoding is collective
        stored = found = _decode_shares(images, config, group, workers, progress)

        def fill(pixels: NDArray[np.uint8]) -> dict[int, str]:
            pixels[: len(found.pixels)] = found.pixels
            return found.reasons

        if entry is not None:
            shape = (len(images), 3, config.store_size, config.store_size)
            group.on_first(lambda: entry.build(shape, fill))
    assert stored is not None
    return accept_readable(images, stored, config)


def _decode_shares(
    images: LabelledImages, config: DataConfig, group: Group, workers: int, progress: Advance | None
) -> StoredPixels:
    """Decode this process's share, and exchange those of all, block by block."""
    edges = np.linspace(0, len(images), group.size + 1).astype(int)

    def advance(done: int, _total: int) -> None:
        if progress:
            # All shares take about the same time.
            progress(min(len(images), done * group.size), len(images))

    share = images.subset(np.arange(*edges[group.rank : group.rank + 2]))
    mine = decode_readable(share, config, workers=workers, progress=advance)
    shares = group.gather_objects(mine.reasons)
    reasons = {
        int(first) + place: why
        for first, found in zip(edges, shares, strict=False)
        for place, why in found.items()
    }
    places = np.cumsum([0, *(np.diff(edges) - [len(found) for found in shares])])
    pixels = np.empty((places[-1], *mine.pixels.shape[1:]), dtype=np.uint8)
    parts = np.split(pixels, places[1:-1])
    parts[group.rank][:] = mine.pixels
    block = max(1, BLOCK_BYTES // (3 * config.store_size**2))
    for rank, part in enumerate(parts):
        blocks = torch.from_numpy(part).split(block)  # type: ignore[no-untyped-call]
        group.broadcast(blocks, source=rank)
    return StoredPixels(pixels, reasons)
