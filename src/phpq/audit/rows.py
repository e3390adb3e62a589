"""The rows of a gallery that an audit looks at, with the vectors that they are compared by."""

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
    """The rows of a gallery that are looked at, and what is known of them."""

    ids: list[str]
    uris: list[str | None]
    labels: list[str | None]
    hashes: list[bytes]
    vectors: FloatArray  # (n, D)
    known: NDArray[np.bool_]  # (n,): rows that have a vector
    source: str
    notes: list[str] = field(default_factory=list)


def store_of(gallery: GalleryStore | str | Path) -> GalleryStore:
    """Open a gallery by its folder, unless it is open."""
    return gallery if isinstance(gallery, GalleryStore) else GalleryStore.open(Path(gallery))


def read_rows(
    store: GalleryStore, load: Callable[[], Model], where: str | None, told: Progress
) -> Rows:
    """Read rows and their vectors, and note what cannot be told of them."""
    manifest = store.manifest
    count = store.count(where)  # and says what is wrong with an expression
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
        _embed(store, load(), rows, code_matrix(table["code"], manifest.num_codebooks), told)
    if not manifest.owns_codebooks and set(labels) & set(load().class_names if count else ()):
        rows.notes.append(
            "The model learned labels of these names, maybe from these images: wrong labels that "
            "were learned look right. A gallery with codebooks of its own (phpq index "
            "--own-codebooks) is judged by an embedding that learned less of them."
        )
    return rows


def _embed(store: GalleryStore, model: Model, rows: Rows, codes: CodeArray, told: Progress) -> None:
    """Embed images; where one is gone, what its code tells, if that was made without its label."""
    own, space = store.manifest.owns_codebooks, store.manifest.space
    rows.source, width = "embeddings made now", store.manifest.embedding_dim
    rows.vectors = np.zeros((len(rows.ids), width), np.float32)
    rows.known[:] = False
    there = [place for place, uri in enumerate(rows.uris) if uri is not None]
    items = [Item(rows.ids[place], origin_at(rows.uris[place] or "")) for place in there]
    encoded = chain.from_iterable(encode_items(items, model, keep_embeddings=True, space=space))
    for number, (place, each) in enumerate(zip(there, encoded, strict=True)):
        record = each.record
        if (
            record is not None
            and record.embedding is not None
            and record.sha256 == rows.hashes[place]
        ):
            rows.vectors[place], rows.known[place] = record.embedding, True
        if number % 64 == 0 or number + 1 == len(there):
            told("embedding", number + 1, len(there))
    gone = ~rows.known
    if not gone.any():
        return
    seen = f"{int(gone.sum()):,} images cannot be read any more"
    if own:
        rows.notes.append(
            f"{seen}: only equal files are told of them, since their codes hold their labels."
        )
        return
    rows.vectors[gone] = store.codebooks(model.codebooks).decode(codes[gone])
    rows.known[:] = True
    rows.notes.append(f"{seen}: their codes tell less of them, and copies among them are not seen.")


def as_before_labels(vectors: FloatArray, projection: FloatArray | None) -> FloatArray:
    """Return embeddings (n, E) as they were before a model whitened them by a map (F, E).

    A model that was trained on the images of the gallery whitened them by their labels, the wrong
    ones too, under which they vouch for themselves.
    """
    return vectors if projection is None else vectors @ np.linalg.pinv(projection)


def whitening_of(store: GalleryStore) -> FloatArray | None:
    """Return the map that whitens, of the model of a gallery of general embeddings."""
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
        return None  # the embeddings tell less, but they do
