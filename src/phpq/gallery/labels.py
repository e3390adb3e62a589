"""Change the labels of a gallery without its images: a store in, one commit out.

Where the gallery owns its codebooks, a renamed class keeps its codes, and rows that move to another
class are encoded again, from kept embeddings or from their codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from phpq.additive import AdditiveCodebooks, renamed_parents
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery._embedded import kept_embeddings
from phpq.gallery._part import batches
from phpq.gallery.owned import code_records, read_calibration, write_calibration, write_codebooks
from phpq.gallery.records import code_matrix
from phpq.gallery.reencode import with_codes
from phpq.gallery.store import GalleryStore


def rename_labels(store: GalleryStore, names: Mapping[str, str]) -> int:
    """Rename labels, as in {old: new}; an existing new name merges the two.

    Returns how many images have another label now; an `UnknownNameError` for an unknown label.
    """
    wanted = {old: new for old, new in names.items() if old != new}
    if not all(wanted.values()):
        raise ConfigError("A label must not be empty. Give it a name.")
    with store.changing():
        counts = store.label_counts()
        for old in wanted:
            if old not in counts:
                raise UnknownNameError(
                    f"No image of the gallery {str(store.folder)!r} has the label {old!r}; nothing "
                    "was changed."
                )
        if not wanted:
            return 0
        _rename(store, wanted)
    return sum(counts[old] for old in wanted)


def relabel(store: GalleryStore, ids: Sequence[str], label: str | None) -> int:
    """Give images another label, or None; returns how many had another.

    An `UnknownNameError` for an unknown id; then nothing is changed.
    """
    if label == "":
        raise ConfigError("A label must not be empty. Give it a name, or None for no label.")
    with store.changing():
        found = store.find(ids)
        for name in ids:
            if name not in found:
                raise store.unknown(name)
        changed = [record for record in found.values() if record.label != label]
        if not changed:
            return 0
        old_labels = {record.id: record.label for record in changed}
        records = [replace(record, label=label) for record in changed]
        if store.manifest.owns_codebooks:
            records = code_records(store, records, store, relabelled=old_labels)
        rows = store.numbers_of([record.id for record in records])
        store.write_rows(records, rows, replacing=True)
    return len(records)


def _rename(store: GalleryStore, names: Mapping[str, str]) -> None:
    """Rename classes and rows in one commit; rows of merged classes are encoded again."""
    manifest = store.manifest
    old = new = None
    moved: set[str] = set()
    if manifest.owns_codebooks:
        old = store.own_codebooks()
        new = old.renamed(names)
        moved = {name for name in names if _code_of(old, name) != _code_of(new, names[name])}
        manifest = replace(manifest, books=write_codebooks(store.folder, new))
    elif manifest.chances:
        found = read_calibration(store.folder, manifest)
        found = replace(found, parents=renamed_parents(found.parents, names))
        manifest = replace(manifest, chances=write_calibration(store.folder, found))

    def tables() -> Iterator[Any]:
        for table in batches(store, without=()):
            before = table["label"].to_pylist()
            after = [name and names.get(name, name) for name in before]
            if old is not None and new is not None and moved.intersection(before):
                table = _recoded(table, [name in moved for name in before], old, new, after)
            place = table.schema.get_field_index("label")
            yield table.set_column(place, "label", pa.array(after, pa.string()))

    store.rewrite(tables(), store.dataset.schema, manifest)


def _recoded(
    table: Any,
    moved: Sequence[bool],
    old: AdditiveCodebooks,
    new: AdditiveCodebooks,
    labels: Sequence[str | None],
) -> Any:
    """Return a table whose `moved` rows have the codes of the new codebooks and labels."""
    rows = np.flatnonzero(moved).tolist()
    codes = code_matrix(table["code"], old.num_codebooks)
    if "embedding" in table.column_names:
        vectors = kept_embeddings(table)[rows]
    else:
        before = table["label"].to_pylist()
        vectors = old.decode_without_class(codes[rows], [before[row] for row in rows])
    codes[rows] = new.encode(vectors, [labels[row] for row in rows])
    return with_codes(table, codes)


def _code_of(books: AdditiveCodebooks, name: str) -> tuple[int, ...] | None:
    """Return the code of a class, None for an unknown one."""
    if name not in books.class_names:
        return None
    return tuple(books.class_codes[books.class_names.index(name)].tolist())
