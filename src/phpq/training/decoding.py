"""A set of images decoded by several processes: each decodes its share, and all get everything.

Pixels and the reasons of unreadable images are exchanged in blocks, so that little is held twice. A
cache is used if every process finds it; otherwise the first one writes it, for the next time.
"""

from __future__ import annotations

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

_BLOCK_BYTES = 64 << 20  # of pixels that a process sends at once


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
        config: As for `decode_all`, as what follows.
        group: The processes; all must call this.
        workers: Threads of each process; 0 is one per core.
        progress: Called with (images done, images in all) as this process's share is decoded.
        cache: A folder that keeps the pixels for the next time.

    Returns:
        The same in every process, and what one process alone would have got; so are its errors.
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
    shares = group.gather_objects(mine.reasons)
    reasons = {
        int(first) + place: why
        for first, share in zip(edges, shares, strict=False)
        for place, why in share.items()
    }
    places = np.cumsum([0, *(np.diff(edges) - [len(share) for share in shares])])
    pixels = np.empty((places[-1], *mine.pixels.shape[1:]), dtype=np.uint8)
    pixels[places[group.rank] : places[group.rank + 1]] = mine.pixels
    block = max(1, _BLOCK_BYTES // int(np.prod(pixels.shape[1:])))
    for rank in range(group.size):
        for first in range(places[rank], places[rank + 1], block):
            last = min(first + block, places[rank + 1])
            group.broadcast([torch.from_numpy(pixels[first:last])], source=rank)
    return StoredPixels(pixels, reasons)
