"""A cache of arrays made of images: `<name>.npy`, opened as a memory map, and a JSON manifest.

The arrays are decoded pixels, or features of a frozen part (`phpq.training.features`). The manifest
holds a fingerprint of the ids, file sizes, modification times and settings, and a checksum; an
entry that does not match is made again. Files are renamed when they are complete: a killed run
leaves at most a `.tmp` file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from phpq.config import DataConfig
from phpq.data.images import LabelledImages
from phpq.errors import DataError
from phpq.files import write_json

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class StoredPixels:
    """An array of the readable images, and the reasons of the others."""

    pixels: NDArray[Any]  # (K, ...), the readable images in order: (K, 3, S, S) uint8 if decoded
    reasons: dict[int, str]  # by the position in the whole set


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one set of images in a cache folder."""

    folder: Path
    stem: str
    fingerprint: str

    @property
    def manifest(self) -> Path:
        """The JSON file that describes the pixels."""
        return self.folder / f"{self.stem}.json"

    @property
    def pixels(self) -> Path:
        """The `.npy` file; its name carries the fingerprint, so two versions never mix."""
        return self.folder / f"{self.stem}.{self.fingerprint[:12]}.npy"

    def load(self) -> StoredPixels | None:
        """Open the stored array; None if it is absent, stale or damaged."""
        try:
            manifest = json.loads(self.manifest.read_text("utf-8"))
            if manifest["fingerprint"] != self.fingerprint:
                return None
            pixels = np.load(self.pixels, mmap_mode="c", allow_pickle=False)
            kept = pixels[: manifest["readable"]]
            fits = str(pixels.dtype) == manifest.get("dtype", "uint8")
            fits = fits and list(pixels.shape) == manifest["shape"]
            if not fits or zlib.crc32(kept.data) != manifest["crc32"]:
                return None
            return StoredPixels(kept, {int(i): why for i, why in manifest["reasons"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # whatever the damage, the entry is made again

    def build(
        self,
        shape: tuple[int, ...],
        fill: Callable[[NDArray[Any]], dict[int, str]],
        dtype: type = np.uint8,
    ) -> StoredPixels:
        """Make the stored array and open it.

        `fill` writes the readable images, in order, to the start of an array (N, ...) for all
        images, and returns the reasons of the others.
        """
        part = self.folder / f"{self.stem}.{os.getpid()}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            pixels = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=shape)
            if hasattr(os, "posix_fallocate"):  # on a full disk a page fault kills the process
                with part.open("r+b") as stream:
                    os.posix_fallocate(stream.fileno(), 0, part.stat().st_size)
            reasons = fill(pixels)
            pixels.flush()
            readable = shape[0] - len(reasons)
            manifest = {
                "format_version": FORMAT_VERSION,
                "fingerprint": self.fingerprint,
                "shape": list(shape),
                "dtype": str(pixels.dtype),
                "readable": readable,
                "crc32": zlib.crc32(pixels[:readable].data),
                "reasons": {str(i): why for i, why in sorted(reasons.items())},
            }
            del pixels  # Windows cannot rename a mapped file
            part.replace(self.pixels)
            write_json(self.manifest, manifest)
            for path in self.folder.glob(f"{self.stem}.*.npy"):
                if path != self.pixels:  # of an older version
                    with contextlib.suppress(PermissionError):  # on Windows, while it is in use
                        path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"Cannot write the cache in {str(self.folder)!r}: {error.strerror or error} "
                f"({math.prod(shape) * np.dtype(dtype).itemsize / 1e6:,.0f} MB are needed). Make "
                "room, choose another folder (PHPQ_HOME), or do without a cache."
            ) from error
        finally:
            if part.exists():
                part.unlink()
        mapped = np.load(self.pixels, mmap_mode="c", allow_pickle=False)
        return StoredPixels(mapped[:readable], reasons)


def find_entry(
    folder: Path,
    images: LabelledImages,
    config: DataConfig,
    *,
    kind: str = "",
    made_by: Sequence[Any] = (),
) -> CacheEntry | None:
    """Return the entry of these images in a cache folder, or None if they are not all files.

    For anything but pixels, `kind` is a part of the name, and `made_by` all that it depends on.
    """
    settings = [FORMAT_VERSION, PIL.__version__, config.store_size, config.fit, config.max_pixels]
    settings += made_by
    digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
    for index, name in enumerate(images.ids):
        path = images.path(index)
        if path is None:
            return None
        try:
            status = path.stat()
            state = [name, str(path), status.st_size, status.st_mtime_ns]
        except OSError:
            state = [name, str(path), -1, -1]
        digest.update(json.dumps(state).encode() + b"\n")
    if not len(images):
        return None
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", images.name).strip("-") or "images"
    stem = f"{slug}-{config.store_size}-{config.fit}{kind}"
    return CacheEntry(folder, stem, digest.hexdigest())
