"""The rows of one version, read from the checked copy where there is one, or else with Lance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import IntArray
from phpq.gallery._copy import Copy, write_copy
from phpq.gallery.folder import IMAGES, damage_named, newest_seen


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
        """Of Lance, at the version that is read, opened when it is needed; others only read it."""
        if self._dataset is None:
            self._dataset = open_dataset(self.folder, self.version)
        return self._dataset

    @property
    def copied(self) -> Any:
        """The copied rows of the version that is read, an Arrow table; None if there are none."""
        if self._copy is not None and self._copy.version != self.version:
            self._copy = None  # it was written to, or refreshed
        return self._copy and self._copy.table

    @property
    def schema(self) -> Any:
        """Of the rows, without embeddings where they are copied."""
        return self.dataset.schema if self.copied is None else self.copied.schema

    def __len__(self) -> int:
        return int(self.dataset.count_rows() if self.copied is None else self.copied.num_rows)

    def scan(self, columns: list[str], *, rows: int, fragments: Any = None) -> Iterator[Any]:
        """Yield columns of all rows, or of those of some fragments, as Arrow batches of `rows`."""
        copied = self.copied
        if copied is not None:
            yield from copied.select(columns).to_batches(max_chunksize=rows)
            return
        yield from self.dataset.to_batches(columns=columns, fragments=fragments, batch_size=rows)

    def rows_at(self, offsets: IntArray, columns: list[str]) -> Any:
        """Return columns of the rows at (n,) places of a scan, in that order: an Arrow table."""
        copied = None if "embedding" in columns else self.copied
        with damage_named(self.folder):
            if copied is None:
                return self.dataset.take(offsets.tolist(), columns=columns)
            wanted = np.ascontiguousarray(offsets, np.int64)
            # Not by `pa.array`, which loads pandas.
            places = pa.Array.from_buffers(pa.int64(), len(wanted), [None, pa.py_buffer(wanted)])
            return copied.select(columns).take(places)

    def embeddings_at(self, offsets: IntArray) -> NDArray[np.float16]:
        """Return the kept embeddings (n, D) of the rows at (n,) places of a scan, in that order."""
        copy = self._copy if self.copied is not None else None
        found = copy.embeddings_at(offsets) if copy is not None else None
        if found is not None:
            return found
        column = self.rows_at(offsets, ["embedding"]).column("embedding").combine_chunks()
        rows: NDArray[np.float16] = column.flatten().to_numpy(zero_copy_only=False)
        return rows.reshape(-1, column.type.list_size)

    def copy(self) -> None:
        """Copy the version that is read for the readers to come, unless that is done."""
        if self.copied is None:
            write_copy(self.folder, self.dataset)


def open_dataset(folder: Path, version: int | None = None) -> Any:
    """Open the newest or a named version; a `FormatError` if it is damaged, or the newest lost."""
    import lance

    seen = newest_seen(folder)  # first: a writer may commit while the dataset is opened
    with damage_named(folder):
        dataset = lance.dataset(folder / IMAGES, version=version)
        if version is None and seen > dataset.version:
            raise ValueError(f"its version {seen} is missing, the newest left is {dataset.version}")
    return dataset
