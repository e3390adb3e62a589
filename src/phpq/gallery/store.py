"""The gallery on disk: records in, codes, rows and records out. numpy and Arrow, no torch.

    manifest.json   settings and the model's fingerprint
    images.lance    a row an image; every change is one Lance commit
    writer.lock     held while a change is made

A store is one version of the data until it writes or is refreshed, whatever others write meanwhile.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phpq.codes import CodeArray, IntArray
from phpq.errors import ConfigError, DataError, FormatError
from phpq.gallery.damage import IMAGES, damage_named, newest_seen
from phpq.gallery.fragments import WriteFragments, write_here
from phpq.gallery.lock import writing
from phpq.gallery.manifest import Manifest, read_manifest, repair_command, write_manifest
from phpq.gallery.records import (
    INTERNAL,
    Record,
    base_schema,
    checked_codes,
    code_matrix,
    to_table,
)
from phpq.gallery.scan_order import ScanOrder, locate

METADATA_KEY = b"phpq"
_FETCH_ROWS = 8192  # rows of one block of an export
_READ_ROWS = 1 << 16  # rows whose codes are read and checked at once


@dataclass(frozen=True, slots=True, eq=False)
class StoredCodes:
    """All codes of one version.

    Attributes:
        rows: (N,) int64, ascending: the numbers that name rows in the store.
        codes: (N, M) uint8.
    """

    rows: IntArray
    codes: CodeArray


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What one commit did.

    Attributes:
        rows: (n,) int64, the new rows, in the order of the records.
        replaced: (m,) int64, the rows of the same ids that they replaced.
        before: The version that the change was made to.
    """

    rows: IntArray
    replaced: IntArray
    before: int


class GalleryStore:
    """One gallery directory; use `create` or `open`."""

    def __init__(self, folder: Path, manifest: Manifest, dataset: Any) -> None:
        self.folder = folder
        self.manifest = manifest
        self.lock_timeout = 60.0  # seconds to wait for another writer
        self._dataset = dataset
        self._places: ScanOrder | None = None
        self._next_row = 0  # numbers of rows that were deleted are not given again

    @classmethod
    def create(
        cls,
        folder: Path,
        manifest: Manifest,
        *,
        fill: Callable[[Path], object] | None = None,
    ) -> GalleryStore:
        """Make an empty gallery; it appears whole or not at all.

        Args:
            folder: Must not exist, or be empty.
            manifest: Its settings.
            fill: Called with the folder under its temporary name, to put the model there.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(
                f"{str(folder)!r} exists already. Open it to add to it, or name another folder."
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
        try:
            schema = base_schema(manifest)
            about = {METADATA_KEY: json.dumps(manifest.to_dict()).encode()}
            empty = schema.empty_table().replace_schema_metadata(about)
            lance.write_dataset(empty, made / IMAGES, schema=schema.with_metadata(about))
            write_manifest(made, manifest)
            if fill is not None:
                fill(made)
            made.chmod(0o755)  # mkdtemp makes it private
            made.replace(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, *, version: int | None = None) -> GalleryStore:
        """Open the newest version, or the one that is named.

        Raises:
            FormatError: If it is no gallery, damaged, or holds another model's codes.
        """
        manifest = read_manifest(folder)
        seen = newest_seen(folder)  # first: a writer may commit while the dataset is opened
        with damage_named(folder):
            dataset = lance.dataset(folder / IMAGES, version=version)
            names = set(dataset.schema.names)
            stored = json.loads((dataset.schema.metadata or {}).get(METADATA_KEY, b"{}"))
        if version is None and seen > dataset.version:
            raise FormatError(
                f"The gallery {str(folder)!r} is damaged: its version {seen} is missing, the "
                f"newest left is {dataset.version}. {repair_command(folder)}"
            )
        missing = set(base_schema(manifest).names) - names
        if missing:
            raise FormatError(
                f"The gallery {str(folder)!r} is damaged: {IMAGES} has no column "
                f"{sorted(missing)[0]!r}. {repair_command(folder)}"
            )
        if stored.get("model_fingerprint") != manifest.model_fingerprint:
            raise FormatError(
                f"The codes in {str(folder / IMAGES)!r} were made by another model than the one "
                f"that {str(folder)!r} names. Restore the two from one copy, or index the images "
                f"again. If only manifest.json is wrong: phpq gallery verify --repair {folder}"
            )
        return cls(folder, manifest, dataset)

    @property
    def version(self) -> int:
        """The version that is read."""
        return int(self._dataset.version)

    @property
    def dataset(self) -> Any:
        """The Lance dataset of that version, for reading."""
        return self._dataset

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The free columns."""
        fixed = {"id", "uri", "label", *INTERNAL}
        return tuple(name for name in self._dataset.schema.names if name not in fixed)

    def refresh(self) -> None:
        """Move to the newest version."""
        with damage_named(self.folder):
            self._dataset.checkout_latest()

    def __len__(self) -> int:
        return int(self._dataset.count_rows())

    def read_codes(self) -> StoredCodes:
        """Read all codes in the order of insertion, and check every row.

        Raises:
            FormatError: If a code is missing or not what was written.
        """
        books = self.manifest.num_codebooks
        rows, codes = np.empty(len(self), np.int64), np.empty((len(self), books), np.uint8)
        start = 0
        with damage_named(self.folder):
            # In blocks: checking all rows at once would take ten times the memory of the codes.
            for batch in self._dataset.to_batches(
                columns=["row", "code", "check"], batch_size=_READ_ROWS
            ):
                part = slice(start, start + batch.num_rows)
                rows[part], codes[part] = checked_codes(pa.Table.from_batches([batch]), books)
                start = part.stop
            if start != len(rows):
                raise ValueError(f"{len(rows) - start} rows are missing")
        self._places, order = locate(self.version, rows)
        return StoredCodes(self._places.rows, codes if order is None else codes[order])

    def rows_where(self, where: str, *, fragments: Sequence[Any] | None = None) -> IntArray:
        """Return the rows, ascending, for which a Lance SQL expression is true.

        Args:
            where: The expression.
            fragments: Those of the dataset to look at; None looks at all.

        Raises:
            ConfigError: If the expression cannot be used; the message lists the columns.
        """
        try:
            scan = self._dataset.scanner(columns=["row"], filter=where, fragments=fragments)
            table = scan.to_table()
        except (ValueError, pa.ArrowException, OSError) as error:
            raise self._bad_expression(where, error) from error
        return np.sort(table.column("row").to_numpy())

    def count(self, where: str | None = None) -> int:
        """Count the images, or those for which an expression is true."""
        return len(self) if where is None else len(self.rows_where(where))

    def find(self, ids: Sequence[str]) -> dict[str, Record]:
        """Return the images of the gallery that have these ids."""
        table = self._matching(ids)
        return {record.id: record for record in self.records(table)}

    def fetch(self, rows: IntArray) -> list[Record]:
        """Return the images of (n,) existing rows, in that order."""
        places = self._located()
        found = np.searchsorted(places.rows, rows)
        return self.take(found if places.offsets is None else places.offsets[found])

    def take(self, offsets: IntArray) -> list[Record]:
        """Return the images at (n,) places of a scan, in that order."""
        with damage_named(self.folder):
            return self.records(self._dataset.take(offsets.tolist()))

    def put(self, records: Sequence[Record], *, write: WriteFragments = write_here) -> Written:
        """Add images, replacing those of the same ids, in one commit.

        Args:
            records: With distinct ids; they become the last rows, replaced ones too.
            write: Writes new rows, here or on other machines; they are committed here.
        """
        with writing(self.folder, timeout=self.lock_timeout):
            self.refresh()
            before = self.version
            replaced = self._rows_of([record.id for record in records])
            rows = self.append(records, replacing=bool(len(replaced)), write=write)
        return Written(rows, replaced, before)

    def append(
        self,
        records: Sequence[Record],
        *,
        replacing: bool = False,
        write: WriteFragments = write_here,
    ) -> IntArray:
        """Do the work of `put` for one who holds the lock; returns the (n,) new rows."""
        places = self._located()
        first = max(self._next_row, int(places.rows[-1]) + 1 if len(places.rows) else 0)
        rows = np.arange(first, first + len(records), dtype=np.int64)
        self._next_row = first + len(records)
        if records:
            table = to_table(records, rows, self._dataset.schema)
            self._write(table, replacing=replacing, write=write)
            if places.offsets is None and not replacing:
                joined = np.concatenate([places.rows, rows])
                self._places = ScanOrder(self.version, joined, None)
        return rows

    def delete(
        self, ids: Sequence[str] | None = None, *, where: str | None = None
    ) -> tuple[IntArray, int]:
        """Delete images by id, or by expression, in one commit.

        Returns:
            The rows that went, and the version that they went from.
        """
        if (ids is None) == (where is None):
            raise ConfigError("Say what to delete: either ids, or where=EXPRESSION.")
        with writing(self.folder, timeout=self.lock_timeout):
            self.refresh()
            before = self.version
            gone = self.rows_where(where) if where is not None else self._rows_of(ids or ())
            if len(gone):
                listed = ",".join(map(str, gone.tolist()))
                self._dataset.delete(where if where is not None else f"row IN ({listed})")
        return gone, before

    def merge_files(self, *, above: int) -> None:
        """Merge small files if there are more than `above`; old versions stay for their readers."""
        if len(self._dataset.get_fragments()) > above:
            with writing(self.folder, timeout=self.lock_timeout), damage_named(self.folder):
                self.refresh()
                self._dataset.optimize.compact_files(target_rows_per_fragment=1 << 20)
                self.refresh()

    def compact(self) -> int:
        """Merge small files, drop what was deleted or left by a crash; returns the bytes freed."""
        with writing(self.folder, timeout=self.lock_timeout), damage_named(self.folder):
            self.refresh()
            self._dataset.optimize.compact_files(
                target_rows_per_fragment=1 << 20, materialize_deletions_threshold=0.0
            )
            self.refresh()
            # No other writer is at work, so that files of no version are nobody's.
            freed = self._dataset.cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True
            )
        return int(freed.bytes_removed)

    def batches(self) -> Iterator[Any]:
        """Yield everything but `row` and `check` as Arrow tables, in the order of insertion."""
        columns = [name for name in self._dataset.schema.names if name not in ("row", "check")]
        places = self._located()
        for start in range(0, len(places.rows), _FETCH_ROWS):
            stop = min(start + _FETCH_ROWS, len(places.rows))
            part = places.offsets[start:stop] if places.offsets is not None else range(start, stop)
            with damage_named(self.folder):
                yield self._dataset.take(list(map(int, part)), columns=columns)

    def _write(self, table: Any, *, replacing: bool, write: WriteFragments) -> None:
        new = [name for name in table.column_names if name not in self._dataset.schema.names]
        if new:
            self._dataset.add_columns(pa.schema([table.schema.field(name) for name in new]))
        ordered = table.select(self._dataset.schema.names)
        if replacing:
            merge = self._dataset.merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(ordered)
        else:
            added = lance.LanceOperation.Append(write(ordered, self._dataset))
            self._dataset = lance.LanceDataset.commit(
                self._dataset, added, read_version=self.version
            )

    def _located(self) -> ScanOrder:
        if self._places is None or self._places.version != self.version:
            with damage_named(self.folder):
                table = self._dataset.to_table(columns=["row"])
            self._places, _ = locate(self.version, table.column("row").to_numpy())
        return self._places

    def _rows_of(self, ids: Sequence[str]) -> IntArray:
        rows: IntArray = self._matching(ids, ["row"]).column("row").to_numpy()
        return rows

    def _matching(self, ids: Sequence[str], columns: list[str] | None = None) -> Any:
        """Return a table of the images with these ids; memory stays flat."""
        wanted = pa.array(ids, pa.string())
        found: list[IntArray] = []
        start = 0
        with damage_named(self.folder):
            for batch in self._dataset.to_batches(columns=["id"]):
                mask = pc.is_in(batch.column("id"), value_set=wanted)
                found.append(start + np.flatnonzero(mask.to_numpy(zero_copy_only=False)))
                start += batch.num_rows
            offsets = np.concatenate([np.empty(0, np.int64), *found])
            return self._dataset.take(offsets.tolist(), columns=columns)

    def records(self, table: Any) -> list[Record]:
        """Turn rows of the dataset into records."""
        codes = code_matrix(table.column("code"), self.manifest.num_codebooks)
        kept = None
        if "embedding" in table.column_names:
            flat = table.column("embedding").combine_chunks()
            kept = flat.flatten().to_numpy(zero_copy_only=False)
            kept = kept.reshape(len(codes), self.manifest.embedding_dim)
        names = ["id", "uri", "label", "sha256", *self.metadata_columns]
        return [
            Record(
                id=values["id"],
                uri=values["uri"],
                label=values["label"],
                sha256=values["sha256"],
                code=codes[number],
                metadata={name: values[name] for name in self.metadata_columns},
                embedding=None if kept is None else kept[number],
            )
            for number, values in enumerate(table.select(names).to_pylist())
        ]

    def _bad_expression(self, where: str, error: Exception) -> ConfigError:
        shown = [n for n in self._dataset.schema.names if n not in INTERNAL]
        columns = ", ".join(f"{n} ({self._dataset.schema.field(n).type})" for n in shown)
        reason = str(error).split(", /")[0].removeprefix("Invalid user input: ")
        reason = reason.split(" Valid fields are")[0].rstrip(".")  # those are listed below
        return ConfigError(
            f"where={where!r} cannot be used: {reason}. Columns: {columns}. "
            "An example: label = 'sparrow' AND id LIKE '2024/%'"
        )
