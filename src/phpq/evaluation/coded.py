"""The coded gallery of an evaluation in one file, without Lance.

`phpq.gallery.of_run` turns it into a gallery when it is first searched. The two files of version
0.1.0 (gallery_codes.npy and gallery.json) are read too.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray
from phpq.data import LabelledImages
from phpq.errors import FormatError, NotTrainedError
from phpq.files import read_json, replacing

FOLDER = "evaluation"  # of a run
CODED = "gallery.npz"
OLD_CODES, OLD_ROWS = "gallery_codes.npy", "gallery.json"  # of version 0.1.0
FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, eq=False)
class CodedImages:
    """N coded images."""

    codes: CodeArray  # (N, M) uint8
    embeddings: NDArray[np.float16] | None  # (N, D); None in files of version 0.1.0
    ids: tuple[str, ...]  # unique
    labels: tuple[str, ...]
    paths: tuple[str | None, ...]  # None for an image that comes from no file
    fingerprint: str  # of the model that made the codes


def write_coded(
    folder: Path,
    images: LabelledImages,
    codes: CodeArray,
    embeddings: FloatArray,
    *,
    fingerprint: str,
) -> None:
    """Write the file in one atomic step, and remove those of version 0.1.0.

    Takes N images, their codes (N, M) uint8 and embeddings (N, D) float32.
    """
    files = (images.path(row) for row in range(len(images)))
    rows = {
        "format_version": FORMAT_VERSION,
        "model_fingerprint": fingerprint,
        "class_names": list(images.class_names),
        "ids": list(images.ids),
        "labels": images.labels.tolist(),
        "paths": [None if file is None else str(file.absolute()) for file in files],
    }
    text = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    with replacing(folder / CODED) as temporary, temporary.open("wb") as stream:
        np.savez(stream, codes=codes, embeddings=embeddings.astype(np.float16), rows=text)
    for name in (OLD_CODES, OLD_ROWS):
        (folder / name).unlink(missing_ok=True)


def read_coded(folder: Path, *, remedy: str) -> CodedImages:
    """Read the coded gallery; errors end with `remedy`, which says how to make it again.

    A `NotTrainedError` if there is none; a `FormatError` if a file is damaged, or if the two of
    version 0.1.0 do not belong together.
    """
    path = folder / CODED
    if not path.is_file():
        return _read_old(folder, remedy)
    try:
        # The archive checks every byte that is read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            codes, embeddings = content["codes"], content["embeddings"]
            rows = json.loads(content["rows"].tobytes())
        return _coded(rows, codes, embeddings)
    except (LookupError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"{str(path)!r} is damaged: {error}. {remedy}") from error


def _read_old(folder: Path, remedy: str) -> CodedImages:
    if not (folder / OLD_ROWS).is_file() or not (folder / OLD_CODES).is_file():
        raise NotTrainedError(f"There is no gallery to search in {str(folder)!r}. {remedy}")
    rows = read_json(folder / OLD_ROWS, remedy=remedy)
    stored = (folder / OLD_CODES).read_bytes()
    if hashlib.sha256(stored).hexdigest() != rows.get("codes_sha256"):
        raise FormatError(
            f"{str(folder / OLD_CODES)!r} is damaged, or does not belong to the {OLD_ROWS} beside "
            f"it. {remedy}"
        )
    try:
        return _coded(rows, np.load(io.BytesIO(stored), allow_pickle=False), None)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{str(folder / OLD_ROWS)!r} is damaged: {error!r}. {remedy}") from error


def _coded(
    rows: dict[str, Any], codes: CodeArray, embeddings: NDArray[np.float16] | None
) -> CodedImages:
    if rows["format_version"] not in (1, FORMAT_VERSION):
        raise ValueError(f"it has format version {rows['format_version']!r}; update phpq")
    names, numbers = rows["class_names"], rows["labels"]
    lengths = {len(codes), len(rows["ids"]), len(numbers), len(rows["paths"])}
    lengths |= set() if embeddings is None else {len(embeddings)}
    if len(lengths) > 1:
        raise ValueError(f"its columns have {sorted(lengths)} rows")
    if not all(0 <= number < len(names) for number in numbers):
        raise ValueError("a label is in no class")
    return CodedImages(
        codes=codes,
        embeddings=embeddings,
        ids=tuple(rows["ids"]),
        labels=tuple(names[number] for number in numbers),
        paths=tuple(rows["paths"]),
        fingerprint=str(rows["model_fingerprint"]),
    )
