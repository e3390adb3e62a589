"""The rows of a gallery that an audit reads, with the vectors that they are compared by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray
from phpq.data.places import origin_at
from phpq.errors import ConfigError
from phpq.gallery.ingest import Progress, encode_items
from phpq.gallery.models import model_folder
from phpq.gallery.records import code_matrix
from phpq.gallery.sources import Item
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

MOST_ROWS = 200_000


@dataclass(eq=False)
class Rows:
    """Rows of a gallery, column by column."""

    ids: list[str]
    uris: list[str | None]
    labels: list[str | None]
    hashes: list[bytes]
    vectors: FloatArray  # (n, D)
    known: NDArray[np.bool_]  # (n,): rows that have a vector
    source: str  # of the vectors, for the report
    notes: list[str] = field(default_factory=list)  # limits of this audit, for the report


def open_store(gallery: GalleryStore | str | Path) -> GalleryStore:
    """Open the gallery in a folder; an open one is returned as it is."""
    return gallery if isinstance(gallery, GalleryStore) else GalleryStore.open(Path(gallery))


def read_rows(
    store: GalleryStore, load: Callable[[], Model], where: str | None, progress: Progress
) -> Rows:
    """Read rows and their vectors, and note what limits the audit of them."""
    manifest = store.manifest
    count = store.count(where)  # raises for an invalid expression
    if count > MOST_ROWS:
        raise ConfigError(
            f"{count:,} images are more than can be compared at once ({MOST_ROWS:,}). Look at a "
            "part of them, as in: phpq audit GALLERY --where \"label LIKE 'a%'\""
        )
    columns = ["row", "id", "uri", "label", "sha256", "code"]
    columns += ["embedding"] if manifest.keep_embeddings else []
    table = store.dataset.to_table(columns=columns, filter=where).sort_by("row")
    ids, uris, labels, hashes = (table[each].to_pylist() for each in columns[1:5])
    rows = Rows(
        ids,
        uris,
        labels,
        hashes,
        np.empty((count, 0), np.float32),
        np.ones(count, np.bool_),
        "kept embeddings",
    )
    if manifest.keep_embeddings:
        flat = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        rows.vectors = flat.reshape(count, manifest.embedding_dim).astype(np.float32)
    elif count:
        _embed(store, load(), rows, code_matrix(table["code"], manifest.num_codebooks), progress)
    if not manifest.owns_codebooks and set(labels) & set(load().class_names if count else ()):
        rows.notes.append(
            "The model learned labels of these names, maybe from these images: wrong labels that "
            "were learned look right. A gallery with codebooks of its own (phpq index "
            "--own-codebooks) is judged by an embedding that learned less of them."
        )
    return rows


def _embed(
    store: GalleryStore, model: Model, rows: Rows, codes: CodeArray, progress: Progress
) -> None:
    """Embed images; one that is gone is decoded from its code, if that does not hold its label."""
    space, width = store.manifest.space, store.manifest.embedding_dim
    rows.source = "embeddings made now"
    rows.vectors = np.zeros((len(rows.ids), width), np.float32)
    rows.known[:] = False
    files = [row for row, uri in enumerate(rows.uris) if uri is not None]
    items = [Item(rows.ids[row], origin_at(rows.uris[row] or "")) for row in files]
    encoded = chain.from_iterable(encode_items(items, model, keep_embeddings=True, space=space))
    for number, (row, each) in enumerate(zip(files, encoded, strict=True)):
        record = each.record
        if record and record.embedding is not None and record.sha256 == rows.hashes[row]:
            rows.vectors[row], rows.known[row] = record.embedding, True
        if number % 64 == 0 or number + 1 == len(files):
            progress("embedding", number + 1, len(files))
    gone = ~rows.known
    if not gone.any():
        return
    note = f"{int(gone.sum()):,} images cannot be read any more"
    if store.manifest.owns_codebooks:
        rows.notes.append(
            f"{note}: only equal files are told of them, since their codes hold their labels."
        )
        return
    rows.vectors[gone] = store.codebooks(model.codebooks).decode(codes[gone])
    rows.known[:] = True
    rows.notes.append(f"{note}: their codes tell less of them, and copies among them are not seen.")


def undo_whitening(vectors: FloatArray, projection: FloatArray | None) -> FloatArray:
    """Return the features (n, F) that a `projection` (F, E) made embeddings (n, E) of.

    The projection was fitted to labels. If the model learned from these images, it makes wrong
    labels look right. So does what a learned head adds behind the E numbers: it is left out.
    """
    if projection is None:
        return vectors
    features: FloatArray = vectors[:, : projection.shape[1]] @ np.linalg.pinv(projection)
    return features


def read_whitening(store: GalleryStore) -> FloatArray | None:
    """Return the projection (F, E) of a gallery's general embedding; None for learned ones."""
    from safetensors import SafetensorError, safe_open

    from phpq.model.checkpoint import GENERAL

    path = model_folder(store.folder, store.manifest) / GENERAL
    if store.manifest.space != "general" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            found: FloatArray = file.get_tensor("projection").astype(np.float32)
            return found
    except (SafetensorError, OSError):
        return None  # the audit works without, only less well
