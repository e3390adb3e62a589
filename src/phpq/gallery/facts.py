"""Facts about a gallery, without a model: an open store in, plain data out, ready for JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phpq.codes import group_codes
from phpq.gallery.store import GalleryStore


def describe_store(store: GalleryStore) -> dict[str, Any]:
    """Return what a gallery holds, what it costs, and how it is laid out on disk."""
    codes = store.read_codes().codes
    manifest, dataset = store.manifest, store.dataset
    labels = dataset.to_table(columns=["label"]).column("label")
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
        "format_version": manifest.format_version,
    }


def export_parquet(store: GalleryStore, path: Path) -> int:
    """Write all images in the order of insertion to a Parquet file; returns their number.

    Columns: id, uri, label, sha256, code (a list of M bytes), metadata, and embedding where kept.
    """
    from pyarrow import parquet

    from phpq.files import replacing

    kept = [field for field in store.dataset.schema if field.name not in ("row", "check")]
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        parquet.ParquetWriter(temporary, pa.schema(kept)) as writer,
    ):
        for table in store.batches():
            writer.write_table(table.select([field.name for field in kept]).cast(pa.schema(kept)))
            written += table.num_rows
    return written


def folder_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
