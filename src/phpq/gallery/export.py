"""A gallery for other programs: a store in, a Parquet file or a faiss index with its ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from phpq.codes import Codebooks
from phpq.errors import ConfigError
from phpq.files import replacing, write_bytes, write_json
from phpq.gallery.part import batches, find_part
from phpq.gallery.store import GalleryStore


@dataclass(frozen=True, slots=True, eq=False)
class FaissGallery:
    """A gallery for faiss.

    Attributes:
        index: A `faiss.IndexPQ` with the inner product. It does not normalise queries: pass
            `phpq.codes.normalise_sub_vectors(queries, M)`.
        ids: The id of each row of `index`.
    """

    index: Any
    ids: tuple[str, ...]


def export_parquet(store: GalleryStore, path: Path) -> int:
    """Write all images in the order of insertion to a Parquet file; returns their number.

    Columns: id, uri, label, sha256, code (a list of M bytes), metadata, and embedding where kept.
    """
    from pyarrow import parquet

    kept = [field for field in store.dataset.schema if field.name not in ("row", "check")]
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        parquet.ParquetWriter(temporary, pa.schema(kept)) as writer,
    ):
        for table in batches(store):
            writer.write_table(table.select([field.name for field in kept]).cast(pa.schema(kept)))
            written += table.num_rows
    return written


def to_faiss(store: GalleryStore, codebooks: Codebooks) -> FaissGallery:
    """Copy the codes into a `faiss.IndexPQ`, in the order of insertion."""
    from phpq.index import to_faiss as copy_codes

    ids = tuple(name for table in batches(store) for name in table["id"].to_pylist())
    return FaissGallery(copy_codes(codebooks, find_part(store).codes()), ids)


def write_faiss(index: Any, ids: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Write a faiss index, and the id of each row beside it; returns both paths."""
    import faiss

    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {str(path.parent)!r} to write to. Make it first.")
    write_bytes(path, faiss.serialize_index(index).tobytes())
    names = path.with_name(f"{path.name}.ids.json")
    write_json(names, {"ids": list(ids)})
    return path, names
