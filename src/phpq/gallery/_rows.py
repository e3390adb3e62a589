"""The rows of one version, read from the checked copy or else with Lance; and kept versions.

A version is kept for a rollback by a Lance tag, which the clean-up of Lance respects. It is tagged
before the commit that names it: a process that is killed in between leaves a tag without use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import IntArray
from phpq.gallery._copy import Copy, write_copy
from phpq.gallery.folder import IMAGES, damage_named, newest_seen
from phpq.gallery.records import embedding_matrix

_TAG = "phpq-before-"


class Rows:
    """The rows of a gallery folder as of one version; `source` is a `Copy` or a Lance dataset."""

    def __init__(self, folder: Path, source: Any) -> None:
        self.folder = folder
        self._copy = source if isinstance(source, Copy) else None
        self._dataset = None if isinstance(source, Copy) else source

    @property
    def version(self) -> int:
        """The version that is read."""
        source: Any = self._copy if self._dataset is None else self._dataset
        return int(source.version)

    @property
    def dataset(self) -> Any:
        """The Lance dataset at this version, opened on first use; only a store writes to it."""
        if self._dataset is None:
            self._dataset = open_dataset(self.folder, self.version)
        return self._dataset

    @property
    def copied(self) -> Any:
        """The copied rows of this version, an Arrow table; None without a copy."""
        if self._copy is not None and self._copy.version != self.version:
            self._copy = None  # the store has moved to another version
        return self._copy and self._copy.table

    @property
    def schema(self) -> Any:
        """The schema of the rows; that of a copy has no embeddings."""
        return self.dataset.schema if self.copied is None else self.copied.schema

    def __len__(self) -> int:
        return int(self.dataset.count_rows() if self.copied is None else self.copied.num_rows)

    def label_counts(self) -> dict[str, int]:
        """Count the images of every label."""
        with damage_named(self.folder):
            column = self.dataset.to_table(columns=["label"])["label"].drop_null()
        return {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}

    def scan(self, columns: list[str], *, rows: int, fragments: Any = None) -> Iterator[Any]:
        """Yield columns of all rows, or of some fragments, as Arrow batches of `rows`."""
        copied = self.copied
        if copied is not None:
            yield from copied.select(columns).to_batches(max_chunksize=rows)
            return
        yield from self.dataset.to_batches(columns=columns, fragments=fragments, batch_size=rows)

    def rows_at(self, offsets: IntArray, columns: list[str]) -> Any:
        """Return columns of the rows at (n,) offsets of a scan, in that order: an Arrow table."""
        copied = None if "embedding" in columns else self.copied
        with damage_named(self.folder):
            if copied is None:
                return self.dataset.take(offsets.tolist(), columns=columns)
            wanted = np.ascontiguousarray(offsets, np.int64)
            # Not by `pa.array`, which loads pandas.
            places = pa.Array.from_buffers(pa.int64(), len(wanted), [None, pa.py_buffer(wanted)])
            return copied.select(columns).take(places)

    def embeddings_at(self, offsets: IntArray) -> NDArray[np.float16]:
        """Return the kept embeddings (n, D) of the rows at (n,) offsets of a scan."""
        copy = self._copy if self.copied is not None else None
        found = copy.embeddings_at(offsets) if copy is not None else None
        if found is not None:
            return found
        return embedding_matrix(self.rows_at(offsets, ["embedding"])["embedding"])

    def copy(self) -> None:
        """Copy this version for later readers, unless it is copied."""
        if self.copied is None:
            write_copy(self.folder, self.dataset)


def open_dataset(folder: Path, version: int | None = None) -> Any:
    """Open the newest or a given version; a `FormatError` if it is damaged, or the newest lost."""
    import lance

    seen = newest_seen(folder)  # first: a writer may commit while the dataset is opened
    with damage_named(folder):
        dataset = lance.dataset(folder / IMAGES, version=version)
        if version is None and seen > dataset.version:
            raise ValueError(f"its version {seen} is missing, the newest left is {dataset.version}")
    return dataset


def keep_version(dataset: Any, version: int) -> None:
    """Keep a version until it is released."""
    if not is_kept(dataset, version):
        dataset.tags.create(f"{_TAG}{version}", version)


def is_kept(dataset: Any, version: int) -> bool:
    """Say whether a version is kept."""
    return f"{_TAG}{version}" in dataset.tags.list()


def release_all_but(dataset: Any, version: int) -> list[int]:
    """Release all kept versions but one; returns those that are still kept."""
    left: list[int] = []
    for name in list(dataset.tags.list()):
        number = name.removeprefix(_TAG)
        if number == name or not number.isdecimal():
            continue  # a tag of somebody else
        if int(number) == version:
            left.append(version)
            continue
        with suppress(ValueError, OSError):  # another process was faster
            dataset.tags.delete(name)
    return left
