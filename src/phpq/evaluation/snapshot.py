"""The gallery of an evaluation on disk, for `phpq search`: codes, and which image each row is.

    gallery_codes.npy   (N, M) uint8
    gallery.json        ids, labels, class names, paths, fingerprint of the model, sum of the codes

The two files are a pair: `gallery.json` is written last and holds the checksum of the codes.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phpq.codes import CodeArray, IntArray
from phpq.data import LabelledImages
from phpq.errors import FormatError, NotTrainedError
from phpq.files import read_json, write_bytes, write_json

CODES = "gallery_codes.npy"
GALLERY = "gallery.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class GallerySnapshot:
    """N coded images.

    Attributes:
        codes: (N, M) uint8.
        ids: N unique names.
        labels: (N,) int64, positions in `class_names`.
        class_names: C names.
        paths: The file of each image; None for one that comes from no file.
        fingerprint: Of the model that made the codes.
    """

    codes: CodeArray
    ids: tuple[str, ...]
    labels: IntArray
    class_names: tuple[str, ...]
    paths: tuple[str | None, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.ids)


def take_snapshot(codes: CodeArray, images: LabelledImages, *, fingerprint: str) -> GallerySnapshot:
    """Put codes and images together.

    Args:
        codes: (N, M) uint8.
        images: The N images, in the same order.
        fingerprint: Of the model that made the codes.
    """
    files = (images.path(row) for row in range(len(images)))
    return GallerySnapshot(
        codes=codes,
        ids=images.ids,
        labels=images.labels,
        class_names=images.class_names,
        paths=tuple(None if file is None else str(file.absolute()) for file in files),
        fingerprint=fingerprint,
    )


def write_snapshot(folder: Path, snapshot: GallerySnapshot) -> None:
    """Write both files, each in one atomic step."""
    buffer = io.BytesIO()
    np.save(buffer, snapshot.codes, allow_pickle=False)
    content = buffer.getvalue()
    write_bytes(folder / CODES, content)
    write_json(
        folder / GALLERY,
        {
            "format_version": FORMAT_VERSION,
            "model_fingerprint": snapshot.fingerprint,
            "codes_sha256": hashlib.sha256(content).hexdigest(),
            "class_names": list(snapshot.class_names),
            "ids": list(snapshot.ids),
            "labels": snapshot.labels.tolist(),
            "paths": list(snapshot.paths),
        },
    )


def read_snapshot(folder: Path, *, remedy: str) -> GallerySnapshot:
    """Read the gallery that an evaluation left.

    Args:
        folder: Of the evaluation.
        remedy: The command that makes it anew, for the messages.

    Raises:
        NotTrainedError: If there is no evaluation.
        FormatError: If a file is damaged, or the two do not belong together.
    """
    if not (folder / GALLERY).is_file() or not (folder / CODES).is_file():
        raise NotTrainedError(f"There is no gallery to search in {str(folder)!r}. {remedy}")
    content = read_json(folder / GALLERY, remedy=remedy)
    if content.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{str(folder / GALLERY)!r} has format version {content.get('format_version')!r}; "
            f"this phpq reads {FORMAT_VERSION}. {remedy}"
        )
    stored = (folder / CODES).read_bytes()
    if hashlib.sha256(stored).hexdigest() != content.get("codes_sha256"):
        raise FormatError(
            f"{str(folder / CODES)!r} is damaged, or does not belong to the {GALLERY} beside it. "
            f"{remedy}"
        )
    try:
        return _parse(content, np.load(io.BytesIO(stored), allow_pickle=False))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{str(folder / GALLERY)!r} is damaged: {error!r}. {remedy}") from error


def _parse(content: dict[str, Any], codes: CodeArray) -> GallerySnapshot:
    snapshot = GallerySnapshot(
        codes=codes,
        ids=tuple(content["ids"]),
        labels=np.asarray(content["labels"], dtype=np.int64),
        class_names=tuple(content["class_names"]),
        paths=tuple(content["paths"]),
        fingerprint=str(content["model_fingerprint"]),
    )
    lengths = {len(codes), len(snapshot.ids), len(snapshot.labels), len(snapshot.paths)}
    if len(lengths) > 1:
        raise ValueError(f"its columns have {sorted(lengths)} rows")
    if len(codes) and not 0 <= snapshot.labels.min() <= snapshot.labels.max() < len(
        snapshot.class_names
    ):
        raise ValueError("a label is in no class")
    return snapshot
