"""Exports without a model: a store in, a summary, a Parquet file or a faiss index out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phpq.additive import AdditiveCodebooks
from phpq.codes import Codebooks, group_codes
from phpq.errors import ConfigError
from phpq.files import replacing, write_bytes, write_json
from phpq.gallery._part import batches, find_part
from phpq.gallery.calibration import describe
from phpq.gallery.refit import describe_fit
from phpq.gallery.store import GalleryStore


@dataclass(frozen=True, slots=True, eq=False)
class FaissGallery:
    """A gallery for faiss.

    The index does not normalise queries: pass `phpq.codes.normalise_sub_vectors(queries, M)`.
    """

    index: Any  # a `faiss.IndexPQ` with the inner product
    ids: tuple[str, ...]  # of each row of `index`


def describe_store(store: GalleryStore) -> dict[str, Any]:
    """Return content, size and layout of a gallery, as plain data."""
    codes = find_part(store).codes()
    manifest, dataset = store.manifest, store.dataset
    labels = dataset.to_table(columns=["label"]).column("label")
    own: dict[str, Any] = {}
    if manifest.owns_codebooks:
        memory = store.own_codebooks().memory_bytes()
        own = {
            "trust": manifest.trust,
            "codebook_bytes": memory,
            # With a share of the codebooks.
            "bytes_per_image": (codes.nbytes + memory) / len(codes) if len(codes) else None,
            "fit": asdict(describe_fit(store)),
        }
    shown = {name: str(dataset.schema.field(name).type) for name in store.metadata_columns}
    return {
        "gallery": str(store.folder),
        "images": len(codes),
        "labels": int(pc.count_distinct(labels).as_py()),
        "unlabelled": labels.null_count,
        "distinct_codes": len(group_codes(codes).sizes) if len(codes) else 0,
        "bits": manifest.bits,
        "code_bytes": codes.nbytes,
        "metadata": shown,
        "embeddings": manifest.keep_embeddings,
        "disk_bytes": folder_bytes(store.folder),
        "files": len(dataset.get_fragments()),
        "version": store.version,
        "created": manifest.created,
        "model_fingerprint": manifest.model_fingerprint,
        "before": manifest.before or None,  # the version that a rollback goes to
        "format_version": manifest.format_version,
        "codebooks": manifest.codebooks,
        "probabilities": describe(store),
        **own,
    }


def folder_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def export_parquet(store: GalleryStore, path: Path) -> int:
    """Write all images in the order of insertion to a Parquet file; returns their number.

    Columns: id, uri, label, sha256, code (a list of M bytes), metadata, and embedding where kept.
    """
    from pyarrow import parquet

    fields = (field for field in store.dataset.schema if field.name not in ("row", "check"))
    schema, written = pa.schema(fields), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for table in batches(store):
            writer.write_table(table.select(schema.names).cast(schema))
            written += table.num_rows
    return written


def to_faiss(store: GalleryStore, codebooks: Codebooks) -> FaissGallery:
    """Copy the codes into a `faiss.IndexPQ`, in the order of insertion."""
    from phpq.index import to_faiss as copy_codes

    if isinstance(codebooks, AdditiveCodebooks):
        raise ConfigError(
            f"The gallery {str(store.folder)!r} owns its codebooks, whose codewords span the whole "
            "vector; a faiss.IndexPQ has codewords for parts of it. Search the gallery itself, or "
            "make one with the model's codebooks."
        )
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
