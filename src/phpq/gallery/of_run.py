"""The gallery of an evaluated run: the codes of `phpq evaluate` become `evaluation/gallery`.

The run folder is the model of that gallery; no weights are copied.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from phpq.errors import FormatError
from phpq.evaluation.coded import CODED, FOLDER, CodedImages, read_coded
from phpq.gallery.folder import new_manifest, writing
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

GALLERY = "gallery"  # the folder of the gallery inside an evaluation
_PUT_ROWS = 1 << 15  # records of one commit
_NO_HASH = bytes(32)  # of an image whose file is gone


def open_run(run: Path, model: Model) -> GalleryStore:
    """Open the gallery of an evaluated run; a `FormatError` if it was trained again since."""
    build_gallery(run, model)
    store = GalleryStore.open(run / FOLDER / GALLERY)
    if model.fingerprint() != store.manifest.model_fingerprint:
        raise _trained_since(run)
    return store


def build_gallery(run: Path, model: Model) -> None:
    """Make the gallery of an evaluation, unless that is done.

    After a crash the coded file is still there, and the next call makes the gallery.
    """
    folder = run / FOLDER
    if not _is_pending(folder):
        return
    coded = read_coded(folder, remedy=f"Make it with: phpq evaluate {run}")
    if coded.fingerprint != model.fingerprint():
        raise _trained_since(run)
    with writing(folder):
        if not _is_pending(folder):  # another process was faster
            return
        fresh, old = folder / ".gallery.new", folder / ".gallery.old"
        for left_over in (fresh, old):
            shutil.rmtree(left_over, ignore_errors=True)
        kept = coded.embeddings is not None
        manifest = new_manifest(
            model.codebooks, coded.fingerprint, query_norm=model.query_norm, keep_embeddings=kept
        )
        store = GalleryStore.create(fresh, manifest)
        for records in _records(coded):
            store.put(records)
        if (folder / GALLERY).is_dir():
            (folder / GALLERY).rename(old)
        fresh.rename(folder / GALLERY)
        (folder / CODED).unlink(missing_ok=True)
        shutil.rmtree(old, ignore_errors=True)


def _is_pending(folder: Path) -> bool:
    return (folder / CODED).is_file() or not (folder / GALLERY).is_dir()


def _records(coded: CodedImages) -> Iterator[list[Record]]:
    for start in range(0, len(coded.ids), _PUT_ROWS):
        yield [
            Record(
                id=coded.ids[row],
                uri=coded.paths[row],
                label=coded.labels[row],
                sha256=_hash_file(coded.paths[row]),
                code=coded.codes[row],
                embedding=None if coded.embeddings is None else coded.embeddings[row],
            )
            for row in range(start, min(start + _PUT_ROWS, len(coded.ids)))
        ]


def _hash_file(path: str | None) -> bytes:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if path else _NO_HASH
    except OSError:
        return _NO_HASH


def _trained_since(run: Path) -> FormatError:
    return FormatError(
        f"The codes in {str(run / FOLDER)!r} were made by another model than the one in "
        f"{str(run)!r} now: it was trained again since. Make them anew with: phpq evaluate {run}"
    )
