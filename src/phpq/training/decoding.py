"""A set of images decoded by several processes: each decodes its share, and all get everything.

Pixels and the reasons of unreadable images are exchanged in blocks, so that little is held twice. A
cache is used if every process finds it; otherwise the first one writes it, for the next time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from phpq.config import DataConfig
from phpq.data import DecodedImages, LabelledImages, decode_all
from phpq.data.decode import accept_readable, decode_readable
from phpq.data.pixel_cache import StoredPixels, find_entry
from phpq.training.distributed import Group

_BLOCK_BYTES = 64 << 20  # of pixels that each process sends at once


def decode_together(
    images: LabelledImages,
    config: DataConfig,
    *,
    group: Group,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    cache: Path | None = None,
) -> DecodedImages:
    """Decode a set of images as `decode_all` does, with the work shared by a group.

    Args:
        images: N images, the same in every process.
        config: As for `decode_all`.
        group: The processes; all must call this. A group of one is `decode_all`.
        workers: Threads of each process; 0 is one a core.
        progress: Called with (images done, images in all) as this process's share is decoded.
        cache: A folder that keeps the pixels for the next time.

    Returns:
        The same in every process, and what one process alone would have got.

    Raises:
        DataError: As `decode_all`, in every process.
    """
    if group.size == 1 or not len(images):
        return decode_all(images, config, workers=workers, progress=progress, cache=cache)
    entry = find_entry(cache, images, config) if cache is not None else None
    stored = entry.load() if entry else None
    if not group.every(stored is not None):  # all or none: the others would wait
        stored = _decode_shares(images, config, group=group, workers=workers, progress=progress)
        found = stored

        def fill(pixels: NDArray[np.uint8]) -> dict[int, str]:
            pixels[: len(found.pixels)] = found.pixels
            return found.reasons

        if entry is not None:
            shape = (len(images), 3, config.store_size, config.store_size)
            group.on_first(lambda: entry.build(shape, fill))
    assert stored is not None
    return accept_readable(images, stored, config)


def _decode_shares(
    images: LabelledImages,
    config: DataConfig,
    *,
    group: Group,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> StoredPixels:
    """Decode this process's share, and put those of all together."""
    edges = np.linspace(0, len(images), group.size + 1).astype(int)
    start, stop = edges[group.rank], edges[group.rank + 1]

    def advance(done: int, _total: int) -> None:
        if progress:
            # The shares are alike, and so is the time they take.
            progress(min(len(images), done * group.size), len(images))

    mine = decode_readable(
        images.subset(np.arange(start, stop)), config, workers=workers, progress=advance
    )
    shares = [
        {int(place): str(why) for place, why in json.loads(text).items()}
        for text in group.gather_texts(json.dumps(mine.reasons))
    ]
    reasons = {
        int(first) + place: why
        for first, share in zip(edges, shares, strict=False)
        for place, why in share.items()
    }
    counts = [int(edges[rank + 1] - edges[rank]) - len(share) for rank, share in enumerate(shares)]
    return StoredPixels(_gather_pixels(mine.pixels, counts, group), reasons)


def _gather_pixels(mine: NDArray[np.uint8], counts: list[int], group: Group) -> NDArray[np.uint8]:
    """Concatenate the (n, 3, S, S) pixels of all processes, of which each has its own number."""
    shape = mine.shape[1:]
    places = np.cumsum([0, *counts])
    result = np.empty((places[-1], *shape), dtype=np.uint8)
    block = max(1, _BLOCK_BYTES // int(np.prod(shape)))
    for start in range(0, max(counts), block):
        size = min(block, max(counts) - start)
        sent = np.zeros((size, *shape), dtype=np.uint8)  # all send as much as the longest has
        own = mine[start : start + size]
        sent[: len(own)] = own
        every = group.gather(torch.from_numpy(sent)).numpy().reshape(group.size, size, *shape)
        for rank, count in enumerate(counts):
            kept = max(0, min(size, count - start))
            place = places[rank] + start
            result[place : place + kept] = every[rank, :kept]
    return result
