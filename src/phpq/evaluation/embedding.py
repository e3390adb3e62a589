"""A model and labelled images in, embeddings of those that can be read out.

Images are decoded in threads ahead of the model; memory stays flat however large the set.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import FloatArray
from phpq.config import DataConfig
from phpq.data import LabelledImages, SkippedImage, decode_squares
from phpq.data.images import spread
from phpq.errors import DataError
from phpq.evaluation.protocol import LabelledEmbeddings

if TYPE_CHECKING:
    from phpq.model import Model

Embed = Callable[[NDArray[np.uint8]], FloatArray]  # decoded squares (n, 3, S, S) to (n, D)
Progress = Callable[[str, int, int], None]  # what is done, images done, images in all

_BLOCK = 256  # images of one step


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedImages:
    """The images of a set that could be read, embedded."""

    embeddings: FloatArray  # (N, D) float32
    images: LabelledImages  # N, in the same order
    skipped: tuple[SkippedImage, ...]
    # (N, E) float32, by the name of another way to embed.
    others: Mapping[str, FloatArray] = field(default_factory=dict)

    def labelled(self) -> LabelledEmbeddings:
        """Return the embeddings with their labels, as the protocols take them."""
        return LabelledEmbeddings(self.embeddings, self.images.labels)


def embed_readable(
    model: Model,
    images: LabelledImages,
    *,
    others: Mapping[str, Embed] | None = None,
    progress: Progress | None = None,
) -> EmbeddedImages:
    """Embed every image that can be read, by the model and by `others`, and name the rest.

    A `DataError` if none can be read, or if an image is bad and `data.on_bad_image` is "refuse".
    """
    config = model.card.config.data
    embedders: dict[str, Embed] = {"": model.embed_pixels, **(others or {})}
    parts: dict[str, list[FloatArray]] = {name: [] for name in embedders}
    kept: list[int] = []
    skipped: list[SkippedImage] = []
    for rows, squares, bad in _decoded_blocks(images, config):
        if bad and config.on_bad_image == "refuse":
            raise DataError(
                f"{bad[0].reason} Repair or remove it, or set data.on_bad_image=skip to leave bad "
                "images out."
            )
        if rows:
            pixels = np.stack(squares)
            for name, embed in embedders.items():
                parts[name].append(embed(pixels))
        kept += rows
        skipped += bad
        if progress:
            progress(f"embedding {images.name}", len(kept) + len(skipped), len(images))
    if not kept:
        raise DataError(
            f"None of the {len(images)} images of {images.name!r} can be read. "
            f"For example: {skipped[0].reason}"
            if skipped
            else f"{images.name!r} has no images."
        )
    readable = images.subset(kept) if skipped else images
    embedded = {name: np.concatenate(blocks) for name, blocks in parts.items()}
    return EmbeddedImages(embedded.pop(""), readable, tuple(skipped), embedded)


@dataclass(frozen=True, slots=True)
class _EditedReader:
    """Reads images cropped by a tenth of each side, and compressed again."""

    images: LabelledImages

    def read(self, index: int) -> Image.Image:
        image = self.images.read(index)
        width, height = image.size
        left, top = width // 20, height // 20
        cropped = image.crop((left, top, max(left + 1, width - left), max(top + 1, height - top)))
        stream = io.BytesIO()
        cropped.save(stream, "JPEG", quality=75)
        return Image.open(stream).convert("RGB")


def edited_copies(images: LabelledImages, count: int) -> LabelledImages:
    """Return edited copies of some images, spread evenly."""
    chosen = images.subset(spread(len(images), count))
    name = f"{images.name}, changed"
    return replace(chosen, name=name, reader=_EditedReader(chosen), positions=None)


def find_bad_images(
    images: LabelledImages, config: DataConfig, *, progress: Progress | None = None
) -> tuple[SkippedImage, ...]:
    """Decode every image and return those that cannot be read, with the reason."""
    found: list[SkippedImage] = []
    done = 0
    for rows, _, bad in _decoded_blocks(images, config):
        found += bad
        done += len(rows) + len(bad)
        if progress:
            progress(f"reading {images.name}", done, len(images))
    return tuple(found)


def _decoded_blocks(
    images: LabelledImages, config: DataConfig
) -> Iterator[tuple[list[int], list[NDArray[np.uint8]], list[SkippedImage]]]:
    """Yield (rows that could be read, their (3, S, S) squares, the bad images) by blocks."""
    with closing(decode_squares(images, config, ahead=2 * _BLOCK)) as decoded:
        for start in range(0, len(images), _BLOCK):
            block = list(enumerate(islice(decoded, _BLOCK), start))
            good = [(row, square) for row, square in block if not isinstance(square, str)]
            bad = [SkippedImage(images.ids[row], why) for row, why in block if isinstance(why, str)]
            yield [row for row, _ in good], [square for _, square in good], bad
