"""A run as a gallery: what `phpq evaluate` coded becomes `evaluation/gallery` of the run folder.

The run folder is the model of that gallery; no weights are copied.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from phpq.codes import Space
from phpq.errors import FormatError, NotTrainedError
from phpq.evaluation.coded import CODED, FOLDER, CodedImages, read_coded
from phpq.gallery.folder import MANIFEST, new_manifest, repair_command, writing
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

MODEL = "model"  # the folder of the model inside a gallery
GALLERY = "gallery"  # the folder of the gallery inside an evaluation
_PUT_ROWS = 1 << 15  # records of one commit
_NO_HASH = bytes(32)  # of an image whose file is gone


def is_run(folder: Path) -> bool:
    """Tell a run folder from a gallery."""
    return (folder / "config.json").is_file() and not (folder / MANIFEST).is_file()


def model_folder(gallery: Path) -> Path:
    """Return where the model of a gallery is: inside, or the run that it is the evaluation of."""
    run = gallery.parent.parent
    inside_run = gallery.parent.name == FOLDER and is_run(run)
    return run if inside_run and not (gallery / MODEL).is_dir() else gallery / MODEL


def load_model(folder: Path, device: str, runtime: str = "auto") -> Model:
    """Load the model of a gallery, or of a run that is to be opened as one."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    if is_run(folder):
        return load(folder, device=device, runtime=runtime)
    home = model_folder(folder)
    try:
        read_card(home)  # names a missing folder; `load` would look for it on the hub
        return load(home, device=device, runtime=runtime)
    except (FormatError, NotTrainedError) as error:
        raise FormatError(
            f"The model of the gallery {str(folder)!r} cannot be read: {error} Copy config.json "
            f"and weights.safetensors of its run into {str(home)!r}, then look with: phpq gallery "
            f"verify {folder}"
        ) from error


def open_store(folder: Path, model: Model) -> GalleryStore:
    """Open a gallery, or the gallery of an evaluated run, whose codes are those of a model."""
    own = is_run(folder)
    if own:
        gather_run(folder, model)
    store = GalleryStore.open(folder / FOLDER / GALLERY if own else folder)
    try:
        made_them = fingerprint_of(model, store.manifest.space)
    except NotTrainedError as error:
        raise FormatError(
            f"The model of the gallery {str(folder)!r} cannot be read: {error} Copy "
            f"general.safetensors of its run into {str(model_folder(folder))!r}."
        ) from error
    if made_them == store.manifest.model_fingerprint:
        return store
    if own:
        raise _trained_since(folder)
    raise FormatError(
        f"The codes of the gallery {str(folder)!r} were made by another model than the one in "
        f"{str(model_folder(folder))!r}. Put the model back that made them, or index the images "
        f"again. {repair_command(folder)}"
    )


def fingerprint_of(model: Model, space: Space) -> str:
    """Return what tells a model's embeddings of a space from those of other models."""
    return model.general_fingerprint() if space == "general" else model.fingerprint()


def gather_run(run: Path, model: Model) -> None:
    """Make a gallery of what an evaluation coded, unless that is done.

    A crash leaves the coded file, from which the next call makes the gallery.
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
