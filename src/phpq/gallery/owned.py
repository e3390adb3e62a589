"""What a gallery owns: files of its versions, and records in, records with codes out.

    codebooks/<sha256>.safetensors   codebooks of its own, with what they know of their doubt
    chances/<sha256>.json            the same doubt, where the codebooks are those of its model

Written before the version that names them, never changed. A version says in its manifest which file
is its own, so that codes and codebooks cannot mix.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phpq.additive import AdditiveCodebooks, Calibration
from phpq.codes import FloatArray
from phpq.errors import DataError, FormatError
from phpq.files import remove_temporaries, write_bytes
from phpq.gallery.folder import EMBEDDING_LOCK, Manifest, writing
from phpq.gallery.models import MODEL, MODELS
from phpq.gallery.records import Record

if TYPE_CHECKING:
    from phpq.gallery.store import GalleryStore

BOOKS = "codebooks"  # the folders of the files
SAID = "chances"
SIDE = "refit"  # what was embedded by a refit or an upgrade that is under way or was killed
_YOUNG = (2, 5)  # images of a class at which its prototype is made anew, after the first


def write_codebooks(folder: Path, books: AdditiveCodebooks) -> str:
    """Write codebooks into a gallery, unless they are there; returns the name of their file."""
    return _write(folder, books.to_bytes(), _path)


def write_said(folder: Path, said: Calibration) -> str:
    """Write what a gallery knows of its doubt, unless it is there; returns the file's name."""
    return _write(folder, json.dumps(said.to_facts(), indent=1).encode(), _said_path)


def _write(folder: Path, content: bytes, place: Callable[[Path, str], Path]) -> str:
    name = hashlib.sha256(content).hexdigest()
    path = place(folder, name)
    if not path.is_file() or path.read_bytes() != content:  # a damaged one is put right
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, content)
    return name


def read_said(folder: Path, manifest: Manifest) -> Calibration:
    """Read what a version says of its doubt; nothing where it names no file."""
    if not manifest.chances:
        return Calibration()
    path = _said_path(folder, manifest.chances)
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.chances:
            raise ValueError("it is not what was written")
        return Calibration.from_facts(json.loads(content))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"The probabilities {str(path)!r} cannot be read: {error}. Restore the file from a "
            f"copy, or do without: phpq gallery verify --repair {folder}"
        ) from error


def read_codebooks(folder: Path, manifest: Manifest) -> AdditiveCodebooks:
    """Read the codebooks that a version names; before the first fit, ones that score all alike."""
    if not manifest.books:
        return AdditiveCodebooks(
            codewords=np.zeros((manifest.num_codebooks, manifest.codebook_size, 1), np.float32),
            mean=np.zeros(manifest.embedding_dim, np.float32),
            projection=np.zeros((manifest.embedding_dim, 1), np.float32),
            class_codes=np.zeros((0, 0), np.uint8),
        )
    path = _path(folder, manifest.books)
    kept = "the kept embeddings" if manifest.keep_embeddings else "the images"
    remedy = f"Restore it from a copy, or make new ones from {kept}: phpq gallery refit {folder}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"The codebooks {str(path)!r} cannot be read: {error.strerror}. {remedy}"
        ) from error
    if hashlib.sha256(content).hexdigest() != manifest.books:
        raise FormatError(f"The codebooks {str(path)!r} are not what was written. {remedy}")
    return AdditiveCodebooks.from_bytes(content)


def remove_all_but(folder: Path, kept: Sequence[Manifest]) -> None:
    """Remove files and models of no version that is left, and what killed refits left."""
    if (folder / SIDE).is_dir():
        # What is embedded now, beside other changes, is not left over.
        with suppress(DataError), writing(folder, timeout=0, lock_file=EMBEDDING_LOCK):
            shutil.rmtree(folder / SIDE, ignore_errors=True)
    for home, names in (
        (folder / BOOKS, {f"{manifest.books}.safetensors" for manifest in kept}),
        (folder / SAID, {f"{manifest.chances}.json" for manifest in kept}),
        (folder / MODELS, {manifest.model for manifest in kept}),
    ):
        if home.is_dir():
            remove_temporaries(home)
            for path in home.iterdir():
                if path.name not in names:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if all(manifest.model for manifest in kept):
        shutil.rmtree(folder / MODEL, ignore_errors=True)


def _path(folder: Path, name: str) -> Path:
    return folder / BOOKS / f"{name}.safetensors"


def _said_path(folder: Path, name: str) -> Path:
    return folder / SAID / f"{name}.json"


def code_records(
    store: GalleryStore,
    records: Sequence[Record],
    before: GalleryStore,
    *,
    relabelled: Mapping[str, str | None] | None = None,
) -> list[Record]:
    """Give records the codes of the newest version, for one who holds the lock of `store`.

    Records without a code have an embedding. The others come from the version of `before`, and keep
    their codes if those mean the same now, but for those in `relabelled`, ids with the labels that
    they had. The first images of all have the codebooks fitted to them; what comes later is added
    to the codebooks, which leaves earlier codes valid.
    """
    manifest, had = store.manifest, relabelled or {}
    fresh = not len(store) or before.manifest.fit != manifest.fit
    done, places = list(records), []
    for place, record in enumerate(records):
        if fresh or not len(record.code) or record.id in had:
            places.append(place)
    if places:
        waiting = [records[place] for place in places]
        labels = [record.label for record in waiting]
        vectors = _vectors(waiting, [had.get(each.id, each.label) for each in waiting], before)
        books = _with_books(store, vectors, labels)
        for place, code in zip(places, books.encode(vectors, labels), strict=True):
            done[place] = replace(records[place], code=code)
    if not manifest.keep_embeddings:
        done = [replace(record, embedding=None) for record in done]
    return done


def _vectors(
    records: Sequence[Record], labels: Sequence[str | None], before: GalleryStore
) -> FloatArray:
    """Return (N, D): embeddings where they are there, or what codes made with `labels` tell."""
    vectors = np.empty((len(records), before.manifest.embedding_dim), np.float32)
    bare = [place for place, record in enumerate(records) if record.embedding is None]
    if bare:
        codes = np.stack([records[place].code for place in bare])
        vectors[bare] = before.own_codebooks().own_vectors(codes, [labels[p] for p in bare])
    for place, record in enumerate(records):
        if record.embedding is not None:
            vectors[place] = record.embedding
    return vectors


def _with_books(
    store: GalleryStore, vectors: FloatArray, labels: Sequence[str | None]
) -> AdditiveCodebooks:
    """Return the store's codebooks, fitted now if it is empty, that serve some rows."""
    from phpq.additive import calibrated, fit_additive, grow_additive

    manifest = store.manifest
    if not len(store):
        books = fit_additive(
            vectors, labels, num_codebooks=manifest.num_codebooks, trust=manifest.trust
        )
        books = calibrated(books, vectors, labels)
        name = write_codebooks(store.folder, books)
        store.describe(replace(manifest, books=name, fit=name, fitted_rows=len(vectors)))
        return books
    known = store.own_codebooks()
    young = _young(store, labels) if manifest.keep_embeddings and known.class_books else []
    had = [record.label for record in young]
    if young:
        vectors = np.concatenate([_vectors(young, had, store), vectors])
    books = grow_additive(_without(known, set(had)), vectors, [*had, *labels])
    if books is not known:
        store.describe(replace(manifest, books=write_codebooks(store.folder, books)))
    if young:  # until this commit they stand at the prototype of before, which is no wrong place
        codes = books.encode(vectors[: len(young)], had)
        recoded = [replace(record, code=code) for record, code in zip(young, codes, strict=True)]
        rows = store.numbers_of([record.id for record in young])
        store.write_rows(recoded, rows, replacing=True)
    return books


def _young(store: GalleryStore, labels: Sequence[str | None]) -> list[Record]:
    """Return the images of classes so small that new images should move their prototypes.

    Few images that came one by one must tell as much as those that came together.
    """
    coming = Counter(name for name in labels if name is not None)
    column = store.dataset.to_table(columns=["label"])["label"]
    there = {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}
    small = [
        name
        for name, count in coming.items()
        if any(1 <= there.get(name, 0) < size <= there[name] + count for size in _YOUNG)
    ]
    if not small:
        return []
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in small)
    return store.records(store.dataset.to_table(filter=f"label IN ({listed})"))


def _without(books: AdditiveCodebooks, names: set[str | None]) -> AdditiveCodebooks:
    """Return codebooks that do not know some classes; themselves if there are none."""
    kept = [place for place, name in enumerate(books.class_names) if name not in names]
    if len(kept) == len(books.class_names):
        return books
    classes = tuple(books.class_names[place] for place in kept)
    return replace(books, class_names=classes, class_codes=books.class_codes[kept])
