"""Facts about a gallery, without a model: an open store in, plain data out, ready for JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from phpq.codes import group_codes
from phpq.gallery.part import find_part
from phpq.gallery.store import GalleryStore


def describe_store(store: GalleryStore) -> dict[str, Any]:
    """Return what a gallery holds, what it costs, and how it is laid out on disk."""
    codes = find_part(store).codes()
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


def folder_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
