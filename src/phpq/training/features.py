"""Features of a frozen part in place of pixels: computed once, cached on disk, read every epoch.

    pixels = load_features(dataset, config, frozen, ...)    read by the loop like decoded images

Features are computed from the view that encoding sees. Augmentation is applied to them: "last"
learns from boxes of the stored map, as crops are boxes of an image, "head" from pooled features
with noise. A cache file holds a block of images, so that a killed run loses one block at most. A
file that is damaged, or was made of other images, weights or settings, is computed again.
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
from phpq.data import Dataset, LabelledImages, Splits
from phpq.data.batches import ResidentPixels, Views, crop_boxes, cut_boxes, fits_on
from phpq.data.decode import accept_readable, decode_readable
from phpq.data.pixel_cache import CacheEntry, StoredPixels, find_entry
from phpq.model.frozen import FrozenPart
from phpq.training.distributed import ALONE
from phpq.training.pixels import TrainingPixels
from phpq.training.progress import Advance, Reporter

BLOCK = 512  # images per cache file
BATCH = 32  # images per forward pass of the frozen part
SAMPLE = 2048  # most images that the deviation of each feature is estimated from


@dataclass(frozen=True, slots=True)
class FeatureViews(Views):
    """Turns stored features (B, F) into training and encoding views, as `Views` does for pixels."""

    frozen: FrozenPart
    deviation: Tensor | None  # (F,) of the noise; None: no noise

    def train(self, pixels: Tensor, parameters: Tensor) -> Tensor:
        """Augment features (B, F) by noise and (B, 8) of `draw_augmentations`: (B, F') float32."""
        features = pixels.float()
        if self.deviation is not None:
            features = features + self.deviation * torch.randn_like(features)
        if self.frozen.trainable == "head":
            return features
        layouts = self.frozen.network.backbone.feature_layouts
        stored, learned = (layouts[dim].maps[-1] for dim in self.frozen.feature_dims)
        start, side = features.shape[1] - math.prod(stored), learned[-1]
        deepest = features[:, start:].reshape(-1, *stored)
        boxes = cut_boxes(deepest, crop_boxes(parameters), (side, side))
        return torch.cat([features[:, :start], boxes.flatten(1)], 1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return features (B, F) as float32."""
        return pixels.float()


class MappedFeatures:
    """Features of all images, in the memory maps of their blocks."""

    def __init__(self, blocks: Sequence[NDArray[np.float16]], device: torch.device) -> None:
        self.blocks, self.device = blocks, device
        self.starts = np.cumsum([0, *map(len, blocks)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the features (n, F) of some images."""
        rows = np.arange(len(self))[wanted]
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        pairs = zip(numbers, rows - self.starts[numbers], strict=True)
        return np.stack([self.blocks[block][row] for block, row in pairs])

    def batches(self, indices: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield (B, F) float16 on the device for each row of (steps, B) indices."""
        for rows in indices:
            yield torch.from_numpy(self[rows]).to(self.device)


def load_features(
    dataset: Dataset | Splits,
    config: RunConfig,
    frozen: FrozenPart,
    *,
    reporter: Reporter,
    cache: Path | None = None,
) -> TrainingPixels:
    """Compute the features of both splits, or read them from the folder `cache`."""
    splits: list[tuple[LabelledImages, MappedFeatures]] = []
    for images in (dataset.train, dataset.test):
        blocks, reasons = list[NDArray[np.float16]](), dict[int, str]()
        with reporter.task(f"features of {images.name}", len(images)) as advance:
            for start, block in _blocks(images):
                stored = _load_block(block, start, len(images), config, frozen, cache, advance)
                blocks.append(stored.pixels)
                reasons |= {start + row: reason for row, reason in stored.reasons.items()}
        readable = accept_readable(images, StoredPixels(np.empty(0), reasons), config.data)
        reporter.skipped(readable.skipped)
        splits.append((readable.images, MappedFeatures(blocks, frozen.device)))
    return _as_pixels(splits, config, frozen)


def count_uncached(
    dataset: Dataset, config: RunConfig, frozen: FrozenPart, cache: Path | None
) -> int:
    """Count the images whose features are not in the cache."""
    count = 0
    for images in (dataset.train, dataset.test):
        for start, block in _blocks(images):
            entry = _entry(block, start, config, frozen, cache)
            count += len(block) if entry is None or entry.load() is None else 0
    return count


def extend_features(
    before: TrainingPixels, config: RunConfig, frozen: FrozenPart
) -> TrainingPixels:
    """Compute training features of a network that is frozen further from those of `before`."""
    assert isinstance(before.views, FeatureViews)
    backbone = frozen.network.backbone
    backbone.feature_layouts |= before.views.frozen.network.backbone.feature_layouts
    continued = replace(frozen, trunk=backbone.eval())
    features = MappedFeatures([before.apply_train(continued.features).cpu().numpy()], frozen.device)
    return _as_pixels([(before.train, features), (before.test, before.test_pixels)], config, frozen)


def select_features(
    before: TrainingPixels,
    config: RunConfig,
    frozen: FrozenPart,
    *,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    classes: int,
) -> TrainingPixels:
    """Return some images of both splits, by position, of the first `classes` of a data set."""
    names = before.train.class_names[:classes]
    splits = [
        (
            replace(images.subset(rows), class_names=names),
            MappedFeatures([features[rows]], frozen.device),
        )
        for images, features, rows in (
            (before.train, before.train_pixels, train),
            (before.test, before.test_pixels, test),
        )
    ]
    return _as_pixels(splits, config, frozen)


def _as_pixels(
    splits: Sequence[tuple[LabelledImages, MappedFeatures]], config: RunConfig, frozen: FrozenPart
) -> TrainingPixels:
    """Return the features of both splits as the loop reads pixels."""
    (train, features), (test, test_features) = splits
    device, size = frozen.device, sum(block.nbytes for block in features.blocks)
    stays = device.type == "cuda" and fits_on(device, size)
    resident = ResidentPixels(np.concatenate(features.blocks), device) if stays else None
    deviation = None
    if config.training.feature_noise:
        sample = torch.from_numpy(features[:: -(-len(features) // SAMPLE)]).float()
        deviation = (config.training.feature_noise * sample.std(0)).to(device)
    return TrainingPixels(
        train=train,
        test=test,
        source=resident or features,
        resident=resident,
        train_pixels=features,
        test_pixels=test_features,
        views=FeatureViews(config.data, frozen, deviation),
        config=config.data,
        device=device,
        group=ALONE,
    )


def _blocks(images: LabelledImages) -> Iterator[tuple[int, LabelledImages]]:
    """Yield the images of each cache file, and the position of the first of them."""
    for start in range(0, len(images), BLOCK):
        yield start, images.subset(np.arange(start, min(start + BLOCK, len(images))))


def _entry(
    images: LabelledImages, start: int, config: RunConfig, frozen: FrozenPart, cache: Path | None
) -> CacheEntry | None:
    """Return the cache entry of a block; None without a cache."""
    made_by = (frozen.fingerprint, config.data.eval_crop, torch.__version__)
    kind = f"-{frozen.trainable}{'-mirrored' * frozen.mirrored}-{start}"
    return find_entry(cache, images, config.data, kind=kind, made_by=made_by) if cache else None


def _load_block(
    images: LabelledImages,
    start: int,
    total: int,
    config: RunConfig,
    frozen: FrozenPart,
    cache: Path | None,
    advance: Advance | None,
) -> StoredPixels:
    """Return the features of a block of images, which starts at position `start` of `total`."""
    data, views = config.data, Views(config.data)

    def fill(features: NDArray[Any]) -> dict[int, str]:
        decoded = decode_readable(images, data, workers=config.training.workers)
        for first in range(0, len(decoded.pixels), BATCH):
            squares = torch.from_numpy(decoded.pixels[first : first + BATCH]).to(frozen.device)
            last = first + len(squares)
            features[first:last] = frozen.features(views.encode(squares)).cpu().numpy()
            if advance:
                advance(start + last, total)
        return decoded.reasons

    shape = (len(images), frozen.feature_dims[0])
    entry = _entry(images, start, config, frozen, cache)
    if entry:
        return entry.load() or entry.build(shape, fill, np.float16)
    features = np.empty(shape, np.float16)
    reasons = fill(features)
    return StoredPixels(features[: len(images) - len(reasons)], reasons)
