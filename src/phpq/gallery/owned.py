"""Codebooks that a gallery owns: their files, and records in, records with codes out.

    codebooks/<sha256>.safetensors   written before the version that names it, never changed

A version says in its manifest which file is its own, so that codes and codebooks cannot mix.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phpq.additive import AdditiveCodebooks
from phpq.codes import FloatArray
from phpq.errors import FormatError
from phpq.files import remove_temporaries, write_bytes
from phpq.gallery.folder import Manifest
from phpq.gallery.records import Record

if TYPE_CHECKING:
    from phpq.gallery.store import GalleryStore

BOOKS = "codebooks"  # the folder of the files
SIDE = "refit"  # embeddings of a refit that is under way or was killed


def write_codebooks(folder: Path, books: AdditiveCodebooks) -> str:
    """Write codebooks into a gallery, unless they are there; returns the name of their file."""
    content = books.to_bytes()
    name = hashlib.sha256(content).hexdigest()
    path = _path(folder, name)
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, content)
    return name


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


def remove_all_but(folder: Path, name: str) -> None:
    """Remove codebooks that no version is left for, and what killed refits left."""
    shutil.rmtree(folder / SIDE, ignore_errors=True)
    if (folder / BOOKS).is_dir():
        remove_temporaries(folder / BOOKS)
        for path in (folder / BOOKS).glob("*.safetensors"):
            if path.stem != name:
                path.unlink(missing_ok=True)


def _path(folder: Path, name: str) -> Path:
    return folder / BOOKS / f"{name}.safetensors"


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
    they had. The first images of all have the codebooks fitted to them; classes that come later are
    added to the codebooks, which leaves earlier codes valid.
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
    """Return the store's codebooks, fitted now if it is empty, with the classes of some rows."""
    from phpq.additive_fit import fit_additive

    manifest = store.manifest
    if len(store):
        books = store.own_codebooks().with_classes(vectors, labels)
        if books is not store.own_codebooks():
            store.describe(replace(manifest, books=write_codebooks(store.folder, books)))
    else:
        books = fit_additive(
            vectors, labels, num_codebooks=manifest.num_codebooks, trust=manifest.trust
        )
        name = write_codebooks(store.folder, books)
        store.describe(replace(manifest, books=name, fit=name, fitted_rows=len(vectors)))
    return books
