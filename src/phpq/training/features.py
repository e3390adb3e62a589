"""Rows of a frozen stem in place of pixels: made once, kept on disk, learned from ever after.

    pixels = load_features(dataset, config, cut, ...)     which the loop takes for decoded images

Each image passes the stem as it is encoded; what varies from step to step is made of its row:
"last" learns from boxes of the map, as crops are boxes of an image, "head" from pooled features
with noise. A file holds a block of images, so that a kill costs no more than a block; one that is
damaged, or of other images, weights or settings, is made anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import Dataset, LabelledImages
from phpq.data.batches import ResidentPixels, Views, crop_boxes, cut_boxes, fits_on
from phpq.data.decode import accept_readable, decode_readable
from phpq.data.pixel_cache import CacheEntry, StoredPixels, find_entry
from phpq.model.cut import Cut
from phpq.training.distributed import ALONE
from phpq.training.pixels import TrainingPixels
from phpq.training.progress import Advance, Reporter

BLOCK = 512  # images of a file
BATCH = 32  # images that pass the stem at once
SAMPLE = 2048  # rows, at most, that deviations are taken from


@dataclass(frozen=True, slots=True)
class StoredViews(Views):
    """Turns rows (B, F) of a stem into what the network learns from, and encodes."""

    cut: Cut
    deviation: Tensor | None  # (F,) of the noise that is added; None without any

    def train(self, pixels: Tensor, parameters: Tensor) -> Tensor:
        """Vary rows (B, F) by noise and by (B, 8) of `draw_augmentations`: (B, F') float32."""
        rows = pixels.float()
        if self.deviation is not None:
            rows = rows + self.deviation * torch.randn_like(rows)
        if self.cut.part == "head":
            return rows
        layouts = self.cut.network.backbone.layouts
        stored, learned = (layouts[length].maps[-1] for length in self.cut.lengths)
        place, side = rows.shape[1] - math.prod(stored), learned[-1]
        area = rows[:, place:].reshape(-1, *stored)
        boxes = cut_boxes(area, crop_boxes(parameters), (side, side))
        return torch.cat([rows[:, :place], boxes.flatten(1)], 1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return rows (B, F) as float32."""
        return pixels.float()


class MappedRows:
    """Rows of all images, in the memory maps of their blocks."""

    def __init__(self, blocks: Sequence[NDArray[np.float16]], device: torch.device) -> None:
        self.blocks, self.device = blocks, device
        self.starts = np.cumsum([0, *map(len, blocks)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float16]:
        """Return some rows (n, F)."""
        rows = np.arange(len(self))[wanted]
        places = np.searchsorted(self.starts, rows, side="right") - 1
        pairs = zip(places, rows - self.starts[places], strict=True)
        return np.stack([self.blocks[block][row] for block, row in pairs])

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield (B, F) float16 on the device for each row of (steps, B) indices."""
        for rows in indices:
            yield torch.from_numpy(self[rows]).to(self.device)


def load_features(
    dataset: Dataset,
    config: RunConfig,
    cut: Cut,
    *,
    reporter: Reporter,
    cache: Path | None = None,
) -> TrainingPixels:
    """Let both splits pass the stem, or find what did in the folder `cache`."""
    splits: list[tuple[LabelledImages, MappedRows]] = []
    for images in (dataset.train, dataset.test):
        blocks, reasons = list[NDArray[np.float16]](), dict[int, str]()
        with reporter.task(f"features of {images.name}", len(images)) as advance:
            for start in range(0, len(images), BLOCK):
                part = images.subset(np.arange(start, min(start + BLOCK, len(images))))
                stored = _pass_stem(part, start, len(images), config, cut, cache, advance)
                blocks.append(stored.pixels)
                reasons |= {start + place: why for place, why in stored.reasons.items()}
        readable = accept_readable(images, StoredPixels(np.empty(0), reasons), config.data)
        reporter.skipped(readable.skipped)
        splits.append((readable.images, MappedRows(blocks, cut.device)))
    return _as_pixels(splits, config, cut)


def images_to_pass(dataset: Dataset, config: RunConfig, cut: Cut, cache: Path | None) -> int:
    """Return how many images would have to pass the stem: whose rows are not in the cache."""
    count = 0
    for images in (dataset.train, dataset.test):
        for start in range(0, len(images), BLOCK):
            part = images.subset(np.arange(start, min(start + BLOCK, len(images))))
            entry = _entry(part, start, config, cut, cache)
            count += len(part) if entry is None or entry.load() is None else 0
    return count


def pass_on(before: TrainingPixels, config: RunConfig, cut: Cut) -> TrainingPixels:
    """Let training rows that passed one stem pass another, which is cut further on."""
    assert isinstance(before.views, StoredViews)
    cut.network.backbone.layouts |= before.views.cut.network.backbone.layouts
    onward = replace(cut, trunk=cut.network.backbone.eval())
    rows = before.apply_train(onward.stem).cpu().numpy()
    splits = [(before.train, MappedRows([rows], cut.device)), (before.test, before.test_pixels)]
    return _as_pixels(splits, config, cut)


def choose_rows(
    before: TrainingPixels,
    config: RunConfig,
    cut: Cut,
    *,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    classes: int,
) -> TrainingPixels:
    """Return some rows of both splits, by position, of the first `classes` of a data set."""
    names = before.train.class_names[:classes]
    splits = [
        (replace(images.subset(rows), class_names=names), MappedRows([pixels[rows]], cut.device))
        for images, pixels, rows in (
            (before.train, before.train_pixels, train),
            (before.test, before.test_pixels, test),
        )
    ]
    return _as_pixels(splits, config, cut)


def _as_pixels(
    splits: Sequence[tuple[LabelledImages, MappedRows]], config: RunConfig, cut: Cut
) -> TrainingPixels:
    """Return the rows of both splits as the loop reads pixels."""
    (train, rows), (test, test_rows) = splits
    device, size = cut.device, sum(block.nbytes for block in rows.blocks)
    stays = device.type == "cuda" and fits_on(device, size)
    resident = ResidentPixels(np.concatenate(rows.blocks), device) if stays else None
    deviation = None
    if config.training.feature_noise:
        some = torch.from_numpy(rows[:: -(-len(rows) // SAMPLE)]).float()
        deviation = (config.training.feature_noise * some.std(0)).to(device)
    return TrainingPixels(
        train=train,
        test=test,
        source=resident or rows,
        resident=resident,
        train_pixels=rows,
        test_pixels=test_rows,
        views=StoredViews(config.data, cut, deviation),
        config=config.data,
        device=device,
        group=ALONE,
    )


def _entry(
    images: LabelledImages, start: int, config: RunConfig, cut: Cut, cache: Path | None
) -> CacheEntry | None:
    """Return where the rows of a block are kept; None without a cache."""
    made_by = (cut.fingerprint, config.data.eval_crop, torch.__version__)
    kind = f"-{cut.part}-{start}"
    return find_entry(cache, images, config.data, kind=kind, made_by=made_by) if cache else None


def _pass_stem(
    images: LabelledImages,
    start: int,
    total: int,
    config: RunConfig,
    cut: Cut,
    cache: Path | None,
    advance: Advance | None,
) -> StoredPixels:
    """Return the rows of a block of images, the first of which is number `start` of `total`."""
    data, views = config.data, Views(config.data)

    def fill(rows: NDArray[Any]) -> dict[int, str]:
        decoded = decode_readable(images, data, workers=config.training.workers)
        for first in range(0, len(decoded.pixels), BATCH):
            squares = torch.from_numpy(decoded.pixels[first : first + BATCH]).to(cut.device)
            rows[first : first + len(squares)] = cut.stem(views.encode(squares)).cpu().numpy()
            if advance:
                advance(start + first + len(squares), total)
        return decoded.reasons

    shape = (len(images), cut.lengths[0])
    entry = _entry(images, start, config, cut, cache)
    if entry:
        return entry.load() or entry.build(shape, fill, np.float16)
    rows = np.empty(shape, np.float16)
    reasons = fill(rows)
    return StoredPixels(rows[: len(images) - len(reasons)], reasons)
