"""Codebooks and calibrations in the folder of a gallery, and codes for records that are added.

    codebooks/<sha256>.safetensors   codebooks of the gallery's own, with their calibration
    chances/<sha256>.json            the calibration of a gallery with the codebooks of its model

Files are written before the version that names them in its manifest, and never changed: codes and
codebooks cannot be mixed up.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
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
from phpq.gallery.records import Record, sql_text

if TYPE_CHECKING:
    from phpq.gallery.store import GalleryStore

BOOKS = "codebooks"  # the folders of the files
CALIBRATIONS = "chances"
SIDE = "refit"  # embeddings of a refit or an upgrade that is under way or was killed
_SMALL_CLASSES = (2, 5)  # sizes of a class at which its prototype is computed again


def write_codebooks(folder: Path, books: AdditiveCodebooks) -> str:
    """Write codebooks into a gallery, unless they are there; returns the name of their file."""
    return _write(folder / BOOKS, books.to_bytes(), ".safetensors")


def write_calibration(folder: Path, fitted: Calibration) -> str:
    """Write a calibration into a gallery, unless it is there; returns the name of its file."""
    content = json.dumps(fitted.to_facts(), indent=1).encode()
    return _write(folder / CALIBRATIONS, content, ".json")


def _write(home: Path, content: bytes, suffix: str) -> str:
    name = hashlib.sha256(content).hexdigest()
    path = home / f"{name}{suffix}"
    if not path.is_file() or path.read_bytes() != content:  # a damaged file is replaced
        home.mkdir(exist_ok=True)
        write_bytes(path, content)
    return name


def read_calibration(folder: Path, manifest: Manifest) -> Calibration:
    """Read the calibration that a version names; an empty one if it names none."""
    if not manifest.chances:
        return Calibration()
    path = folder / CALIBRATIONS / f"{manifest.chances}.json"
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
    """Read the codebooks that a version names; before the first fit all their scores are zero."""
    if not manifest.books:
        return AdditiveCodebooks(
            codewords=np.zeros((manifest.num_codebooks, manifest.codebook_size, 1), np.float32),
            mean=np.zeros(manifest.embedding_dim, np.float32),
            projection=np.zeros((manifest.embedding_dim, 1), np.float32),
            class_codes=np.zeros((0, 0), np.uint8),
        )
    path = folder / BOOKS / f"{manifest.books}.safetensors"
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
    """Remove files and models that none of the `kept` versions names, and leftovers of refits."""
    if (folder / SIDE).is_dir():
        # Unless another process is embedding right now.
        with suppress(DataError), writing(folder, timeout=0, lock_file=EMBEDDING_LOCK):
            shutil.rmtree(folder / SIDE, ignore_errors=True)
    for home, names in (
        (folder / BOOKS, {f"{manifest.books}.safetensors" for manifest in kept}),
        (folder / CALIBRATIONS, {f"{manifest.chances}.json" for manifest in kept}),
        (folder / MODELS, {manifest.model for manifest in kept}),
    ):
        if home.is_dir():
            remove_temporaries(home)
            for path in home.iterdir():
                if path.name not in names:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if all(manifest.model for manifest in kept):
        shutil.rmtree(folder / MODEL, ignore_errors=True)


def code_records(
    store: GalleryStore,
    records: Sequence[Record],
    before: GalleryStore,
    *,
    relabelled: Mapping[str, str | None] | None = None,
) -> list[Record]:
    """Give records the codes of the newest version; the caller holds the lock of `store`.

    Records without a code have an embedding. The others come from the version of `before` and keep
    their codes, unless the codebooks were fitted again since, or the record is in `relabelled`: ids
    with their old labels. Codebooks are fitted to the first images of a gallery, and extended to
    later ones, which leaves earlier codes valid.
    """
    manifest, old_labels = store.manifest, relabelled or {}
    refitted = not len(store) or before.manifest.fit != manifest.fit
    done, places = list(records), []
    for place, record in enumerate(records):
        if refitted or not len(record.code) or record.id in old_labels:
            places.append(place)
    if places:
        waiting = [records[place] for place in places]
        labels = [record.label for record in waiting]
        coded_as = [old_labels.get(record.id, record.label) for record in waiting]
        vectors = _vectors(waiting, coded_as, before)
        books = _codebooks_for(store, vectors, labels)
        for place, code in zip(places, books.encode(vectors, labels), strict=True):
            done[place] = replace(records[place], code=code)
    if not manifest.keep_embeddings:
        done = [replace(record, embedding=None) for record in done]
    return done


def _vectors(
    records: Sequence[Record], labels: Sequence[str | None], before: GalleryStore
) -> FloatArray:
    """Return (N, D): kept embeddings, or else decoded codes, which were made with `labels`."""
    vectors = np.empty((len(records), before.manifest.embedding_dim), np.float32)
    bare = [place for place, record in enumerate(records) if record.embedding is None]
    if bare:
        codes, coded_as = [records[place].code for place in bare], [labels[place] for place in bare]
        vectors[bare] = before.own_codebooks().decode_without_class(np.stack(codes), coded_as)
    for place, record in enumerate(records):
        if record.embedding is not None:
            vectors[place] = record.embedding
    return vectors


def _codebooks_for(
    store: GalleryStore, vectors: FloatArray, labels: Sequence[str | None]
) -> AdditiveCodebooks:
    """Return codebooks for some rows: fitted to them if the store is empty, else extended."""
    from phpq.additive import calibrate_additive, fit_additive, grow_additive

    manifest = store.manifest
    if not len(store):
        books = fit_additive(
            vectors, labels, num_codebooks=manifest.num_codebooks, trust=manifest.trust
        )
        books = calibrate_additive(books, vectors, labels)
        name = write_codebooks(store.folder, books)
        store.commit_manifest(replace(manifest, books=name, fit=name, fitted_rows=len(vectors)))
        return books
    old = store.own_codebooks()
    small = _small_classes(store, labels) if manifest.keep_embeddings and old.class_books else []
    small_labels = [record.label for record in small]
    if small:
        vectors = np.concatenate([_vectors(small, small_labels, store), vectors])
    without = _without_classes(old, set(small_labels))
    books = grow_additive(without, vectors, [*small_labels, *labels])
    if books is not old:
        store.commit_manifest(replace(manifest, books=write_codebooks(store.folder, books)))
    if small:  # until this commit they are found by their old prototype, which is still close
        codes = books.encode(vectors[: len(small)], small_labels)
        recoded = [replace(record, code=code) for record, code in zip(small, codes, strict=True)]
        rows = store.numbers_of([record.id for record in small])
        store.write_rows(recoded, rows, replacing=True)
    return books


def _small_classes(store: GalleryStore, labels: Sequence[str | None]) -> list[Record]:
    """Return the images of classes so small that new images should move their prototypes.

    A few images added one by one must give the same quality as if they were added together.
    """
    added = Counter(name for name in labels if name is not None)
    held = store.label_counts()
    small = [
        name
        for name, count in added.items()
        if any(1 <= held.get(name, 0) < size <= held[name] + count for size in _SMALL_CLASSES)
    ]
    if not small:
        return []
    listed = ", ".join(map(sql_text, small))
    return store.records(store.dataset.to_table(filter=f"label IN ({listed})"))


def _without_classes(books: AdditiveCodebooks, names: set[str | None]) -> AdditiveCodebooks:
    """Return codebooks without some classes; themselves if they have none of them."""
    kept = [place for place, name in enumerate(books.class_names) if name not in names]
    if len(kept) == len(books.class_names):
        return books
    classes = tuple(books.class_names[place] for place in kept)
    return replace(books, class_names=classes, class_codes=books.class_codes[kept])
