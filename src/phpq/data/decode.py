"""Image files in, uint8 squares out; an image that cannot be read is named with the reason.

`read_image` and `decode_square` take one image, `decode_squares` and `decode_all` a whole set.
`read_ahead` is how every stage decodes: training, embedding, evaluation and indexing.
"""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from phpq.config import DataConfig
from phpq.data.images import LabelledImages, named
from phpq.data.pixel_cache import StoredPixels, find_entry
from phpq.errors import BadImageError, DataError

MAX_PIXELS = DataConfig().max_pixels
_EXTENSIONS = "avif bmp gif jpe jpeg jpg jp2 pbm pgm png pnm ppm tga tif tiff webp"
IMAGE_EXTENSIONS = frozenset(f".{extension}" for extension in _EXTENSIONS.split())
# The formats of the extensions above, which are detected by content. Pillow's other plug-ins are
# never used: some start programs (EPS starts Ghostscript, which runs the file) or open further
# files. JPEG includes the MPO of phones. TGA has no magic number and comes last.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "TGA")

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 256  # images that are decoded in advance

# Pillow's pixel limit is a module global; the lock keeps two of our threads from restoring it
# in the wrong order. It is held while a header is parsed, not while pixels are decoded.
_LIMIT_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class FileReader:
    """Opens image files by position."""

    root: Path  # the folder that the names are relative to
    names: tuple[str, ...]  # N relative paths with slashes

    def path(self, index: int) -> Path:
        """Return the file of image `index`."""
        return self.root / self.names[index]

    def read(self, index: int) -> Image.Image:
        """Return image `index` in mode RGB."""
        return read_image(self.path(index))


def read_image(
    source: Path | bytes, *, name: str | None = None, max_pixels: int = MAX_PIXELS, draft: int = 0
) -> Image.Image:
    """Decode a file, or its bytes, in one of `FORMATS` to mode RGB, or raise a `BadImageError`.

    The EXIF orientation is applied, transparency is laid over white, 16-bit and float images are
    scaled to 8 bits, and the first frame of an animation is taken. Errors call it `name`, by
    default its path. An image of more than `max_pixels` is refused by its header, before it is
    decoded. With `draft` > 0 a JPEG may be decoded at a reduced size, of at least that many pixels
    on both sides.
    """
    name = name or (str(source) if isinstance(source, Path) else "uploaded image")
    with _open_bytes(source, name) as stream:
        return _decode(stream, name, max_pixels, draft)


def to_square(
    image: Image.Image, size: int, fit: Literal["squash", "crop"] = "crop"
) -> NDArray[np.uint8]:
    """Resize an RGB image to a square with antialiasing: (3, size, size) uint8, C-contiguous.

    `fit` "squash" ignores the aspect ratio; "crop" keeps the square at the centre.
    """
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side) if fit == "crop" else (0, 0, width, height)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def decode_square(
    source: Path | bytes | Image.Image, config: DataConfig, *, name: str | None = None
) -> NDArray[np.uint8]:
    """Turn one image into the square that is stored and encoded: (3, S, S) uint8.

    A gallery image and a query go through this same function, so equal files give equal pixels.
    """
    if isinstance(source, Image.Image):
        image = _to_rgb(source)
    else:
        # Twice the size, so that the final resize still averages.
        wanted = 2 * config.store_size
        image = read_image(source, name=name, max_pixels=config.max_pixels, draft=wanted)
    return to_square(image, config.store_size, config.fit)


@dataclass(frozen=True, slots=True)
class SkippedImage:
    """An image that was left out, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImages:
    """Pixels of the images of a set that could be read."""

    pixels: NDArray[np.uint8]  # (N, 3, S, S); a copy-on-write memory map where a cache is used
    images: LabelledImages  # N, in the order of `pixels`
    skipped: tuple[SkippedImage, ...]

    def __len__(self) -> int:
        return len(self.images)


def decode_squares(
    images: LabelledImages, config: DataConfig, *, ahead: int = _AHEAD, workers: int = 0
) -> Generator[NDArray[np.uint8] | str, None, None]:
    """Decode a set in threads; yields each (3, S, S) uint8 square, or the reason of a failure."""

    def decode(row: int) -> NDArray[np.uint8] | str:
        try:
            source = images.path(row) or images.read(row)
            return decode_square(source, config, name=images.ids[row])
        except BadImageError as error:
            return str(error)

    return read_ahead(range(len(images)), decode, ahead=ahead, workers=workers)


def decode_all(
    images: LabelledImages,
    config: DataConfig,
    *,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    cache: Path | None = None,
) -> DecodedImages:
    """Decode a set of images to squares, in order; unreadable ones are left out or refused.

    `workers` are threads; 0 is one per core. `progress` is called with (images done, images in
    all). The folder `cache` keeps the pixels of images that come from files; a stale or damaged
    cache is written again.
    """
    entry = find_entry(cache, images, config) if cache is not None else None
    stored = entry.load() if entry else None
    if stored is None and entry:
        shape = (len(images), 3, config.store_size, config.store_size)
        stored = entry.build(shape, lambda pixels: _fill(pixels, images, config, workers, progress))
    elif stored is None:
        stored = decode_readable(images, config, workers=workers, progress=progress)
    return accept_readable(images, stored, config)


def decode_readable(
    images: LabelledImages,
    config: DataConfig,
    *,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> StoredPixels:
    """Decode a set, or a part of one, in memory; unreadable images are not refused."""
    pixels = np.empty((len(images), 3, config.store_size, config.store_size), dtype=np.uint8)
    reasons = _fill(pixels, images, config, workers, progress)
    return StoredPixels(pixels[: len(images) - len(reasons)], reasons)


def accept_readable(
    images: LabelledImages, stored: StoredPixels, config: DataConfig
) -> DecodedImages:
    """Leave out unreadable images of a whole set, or raise a `DataError`, as `decode_all` does."""
    skipped = tuple(SkippedImage(images.ids[i], why) for i, why in sorted(stored.reasons.items()))
    if skipped and config.on_bad_image == "refuse":
        shown = "\n".join(f"  {image.reason}" for image in skipped[:10])
        more = f"\n  ... and {len(skipped) - 10} more" if len(skipped) > 10 else ""
        raise DataError(
            f"{len(skipped)} of {len(images)} images of {images.name!r} cannot be read:\n"
            f"{shown}{more}\n"
            "Repair or remove them, or set data.on_bad_image=skip to leave them out."
        )
    kept = [i for i in range(len(images)) if i not in stored.reasons]
    readable = images.subset(kept) if skipped else images
    emptied = np.flatnonzero((images.class_sizes() > 0) & (readable.class_sizes() == 0))
    if emptied.size:
        names = [images.class_names[c] for c in emptied]
        raise DataError(
            f"{images.name!r} has {named(names, 'class')} without a readable image. "
            f"For example: {skipped[0].reason}"
        )
    return DecodedImages(stored.pixels, readable, skipped)


def _fill(
    pixels: NDArray[np.uint8],
    images: LabelledImages,
    config: DataConfig,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> dict[int, str]:
    """Write readable images into `pixels`, in order; returns the reasons of the others."""
    reasons: dict[int, str] = {}
    with closing(decode_squares(images, config, workers=workers)) as squares:
        for row, square in enumerate(squares):
            if isinstance(square, str):
                reasons[row] = square
            else:
                pixels[row - len(reasons)] = square
            if progress:
                progress(row + 1, len(images))
    return reasons


def _decode(stream: BinaryIO, name: str, max_pixels: int, draft: int) -> Image.Image:
    try:
        with _LIMIT_LOCK:
            limit = Image.MAX_IMAGE_PIXELS
            Image.MAX_IMAGE_PIXELS = None  # our own limit is checked below
            try:
                image = Image.open(stream, formats=FORMATS)
            finally:
                Image.MAX_IMAGE_PIXELS = limit
    except UnidentifiedImageError as error:
        raise _bad(name, _unknown_kind(stream)) from error
    except Exception as error:  # a damaged header can raise almost anything inside Pillow
        raise _damaged(name, error) from error
    width, height = image.size
    if width * height > max_pixels:
        raise _bad(
            name,
            f"{width} x {height} pixels are more than the limit of {max_pixels:,}; "
            "make it smaller, or raise data.max_pixels",
        )
    if width < 1 or height < 1:
        raise _bad(name, f"its size is {width} x {height}")
    try:
        if draft > 0:
            image.draft(None, (draft, draft))
        image.load()
        upright: Image.Image = image
        with suppress(Exception):  # damaged metadata is no reason to lose good pixels
            upright = ImageOps.exif_transpose(image)
        return _to_rgb(upright)
    except Exception as error:  # as above, for damaged pixels
        raise _damaged(name, error) from error


def _unknown_kind(stream: BinaryIO) -> str:
    """Describe a file that is in none of `FORMATS` by its first bytes."""
    stream.seek(0)
    start = stream.read(16)
    Image.init()  # registers all formats; none of them opens the file
    marks = ((kind, accept) for kind, (_, accept) in Image.OPEN.items() if kind not in FORMATS)
    whole = len(start) == 16  # which magic numbers are compared with; no image is shorter
    seen = next((kind for kind, accept in marks if whole and accept and accept(start) is True), "")
    what = f"it looks like {seen}" if seen else "it is not an image, or damaged from the start"
    return f"{what}. Opened are {', '.join(FORMATS)}: save it anew as one of these"


def image_format(content: bytes) -> str:
    """Return the format of a readable file, as in "JPEG"."""
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        return image.format or ""


def _open_bytes(source: Path | bytes, name: str) -> BinaryIO:
    try:
        stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        if stream.read(1):
            stream.seek(0)
            return stream
        stream.close()
    except FileNotFoundError as error:
        raise _bad(name, "there is no such file") from error
    except OSError as error:
        raise _bad(name, error.strerror or str(error)) from error
    raise _bad(name, "the file is empty (0 bytes)")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Scale (H, W) to uint8: integers by the range of their type, floats by that of the values."""
    deep = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(deep.min()), float(deep.max())
    if values.dtype == np.uint16:
        low, high = 0.0, 65535.0
    elif np.issubdtype(values.dtype, np.integer):  # Pillow keeps 16-bit files as 32 bits too
        low, high = min(low, 0.0), max(high, 65535.0) if high > 255 else 255.0
    scaled = (deep - low) * (255.0 / max(high - low, 1e-12))
    return np.rint(scaled).clip(0, 255).astype(np.uint8)


def _damaged(name: str, error: Exception) -> BadImageError:
    text = str(error).strip().rstrip(".")
    return _bad(name, f"it is damaged ({text or type(error).__name__})")


def _bad(name: str, reason: str) -> BadImageError:
    return BadImageError(f"Cannot read the image {name!r}: {reason}.")


def read_ahead(
    items: Iterable[Item], work: Callable[[Item], Result], *, ahead: int, workers: int = 0
) -> Generator[Result, None, None]:
    """Yield `work(item)` for every item, in order, computed in threads and in bounded memory.

    `workers` are threads; 0 is one per core (Pillow decodes outside the interpreter lock). Items
    are read by the calling thread, `ahead` >= 1 in advance. An error of `work` is raised in place
    of its result. When the generator is closed, pending work is cancelled.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        try:
            for item in items:
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
