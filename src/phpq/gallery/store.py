"""The gallery on disk: records in, codes, rows and records out. numpy and Arrow, no torch.

    manifest.json   settings and the model's fingerprint
    images.lance    one row per image; every change is one Lance commit
    images.arrow    a copy of the newest version that opens faster (`_copy`)
    codebooks/      of a gallery that owns them, one file per fit
    writer.lock     held while a change is made

A store reads one version until it writes or is refreshed, whatever other processes write.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from phpq.additive import AdditiveCodebooks
from phpq.codes import Codebooks, IntArray
from phpq.errors import ConfigError, DataError, FormatError, UnknownNameError
from phpq.files import is_taken, remove_temporaries, write_json
from phpq.gallery._copy import read_copy
from phpq.gallery._rows import Rows, open_dataset, release_all_but
from phpq.gallery.folder import (
    IMAGES,
    MANIFEST,
    Manifest,
    damage_named,
    parse_manifest,
    read_manifest,
    reason,
    writing,
)
from phpq.gallery.owned import read_codebooks, remove_all_but
from phpq.gallery.records import (
    INTERNAL,
    Record,
    base_schema,
    code_matrix,
    embedding_matrix,
    to_table,
)

METADATA_KEY = b"phpq"
WriteFragments = Callable[[Any, Any], list[Any]]  # a table and a dataset in, fragments out


def write_here(table: Any, dataset: Any) -> list[Any]:
    """Write an Arrow table as fragments, with the columns of an open dataset.

    Fragments are invisible until `GalleryStore.put` commits them; `GalleryStore.compact` removes
    those that were never committed. So any process may write them, and may die while it does.
    """
    from lance.fragment import write_fragments

    return list(write_fragments(table, dataset, mode="append"))


def write_at(table: Any, uri: str, version: int) -> list[Any]:
    """Do as `write_here` for a version of the dataset at `uri`, from any machine."""
    import lance

    return write_here(table, lance.dataset(uri, version=version))


class GalleryStore(Rows):
    """One gallery directory; use `create` or `open`."""

    def __init__(self, folder: Path, manifest: Manifest, source: Any) -> None:
        super().__init__(folder, source)
        self.manifest = manifest
        self._books: AdditiveCodebooks | None = None  # those of `manifest.books`, once read
        self.lock_timeout = 60.0  # seconds to wait for another writer
        self._next_row = 0  # numbers of deleted rows are not used again
        self._numbered = -1  # the version that `_next_row` was computed for

    @classmethod
    def create(
        cls, folder: Path, manifest: Manifest, *, fill: Callable[[Path], object] | None = None
    ) -> GalleryStore:
        """Make an empty gallery in a new or empty folder; it appears whole or not at all.

        `fill` is called with the folder under its temporary name, to put the model there.
        """
        if is_taken(folder):
            raise DataError(
                f"{str(folder)!r} exists already. Open it to add to it, or name another folder."
            )
        import lance

        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
        try:
            schema = base_schema(manifest).with_metadata(_metadata(manifest))
            lance.write_dataset(schema.empty_table(), made / IMAGES, schema=schema)
            write_json(made / MANIFEST, manifest.to_dict())
            if fill is not None:
                fill(made)
            made.chmod(0o755)  # mkdtemp makes it private
            made.replace(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, *, version: int | None = None) -> GalleryStore:
        """Open the newest or a given version; a `FormatError` if damaged or another model's.

        The newest is read from its checked copy, if there is one; Lance is opened when needed.
        """
        manifest = read_manifest(folder)
        copy = read_copy(folder, version)
        source: Any = copy or open_dataset(folder, version)
        schema = copy.table.schema if copy else source.schema
        with damage_named(folder):
            stored = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
            kept = set(base_schema(manifest).names) - ({"embedding"} if copy else set())
            missing = sorted(kept - set(schema.names))
            if missing:
                raise ValueError(f"{IMAGES} has no column {missing[0]!r}")
        if stored.get("model_fingerprint") != manifest.model_fingerprint and not manifest.upgraded:
            raise FormatError(
                f"The codes in {str(folder / IMAGES)!r} were made by another model than the one "
                f"that {str(folder)!r} names. Restore the two from one copy, or index the images "
                f"again. If only manifest.json is wrong: phpq gallery verify --repair {folder}"
            )
        return cls(folder, _manifest_in(schema, folder), source)

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The free columns."""
        fixed = {"id", "uri", "label", *INTERNAL}
        return tuple(name for name in self.schema.names if name not in fixed)

    def refresh(self) -> None:
        """Move to the newest version."""
        if self._dataset is None:  # the version of the copy may be gone
            self._dataset = open_dataset(self.folder)
        with damage_named(self.folder):
            self._dataset.checkout_latest()
        self._moved()

    def codebooks(self, of_model: Codebooks) -> Codebooks:
        """Return the codebooks of this version's codes: the gallery's own, or the model's."""
        return self.own_codebooks() if self.manifest.owns_codebooks else of_model

    def own_codebooks(self) -> AdditiveCodebooks:
        """Return the codebooks that this version owns; a `FormatError` if they are damaged.

        Before the first fit all their scores are zero.
        """
        if self._books is None:
            self._books = read_codebooks(self.folder, self.manifest)
        return self._books

    def _moved(self) -> None:
        """Read the manifest of the version that the dataset has moved to."""
        manifest = _manifest_in(self.dataset.schema, self.folder)
        if manifest.books != self.manifest.books or not manifest.books:
            self._books = None
        self.manifest = manifest

    def rows_where(self, where: str, *, fragments: Sequence[Any] | None = None) -> IntArray:
        """Return the numbers, ascending, of rows for which a Lance SQL expression is true.

        Of some fragments, or all. A `ConfigError` for an invalid expression lists the columns.
        """
        schema = self.dataset.schema
        try:
            scan = self.dataset.scanner(columns=["row"], filter=where, fragments=fragments)
            return np.sort(scan.to_table().column("row").to_numpy())
        except (ValueError, pa.ArrowException, OSError) as error:
            shown = [name for name in schema.names if name not in INTERNAL]
            columns = ", ".join(f"{name} ({schema.field(name).type})" for name in shown)
            message = reason(error).removeprefix("Invalid user input: ")
            message = message.split(" Valid fields are")[0].rstrip(".")  # they are listed below
            raise ConfigError(
                f"where={where!r} cannot be used: {message}. Columns: {columns}. Text is in single "
                "quotes: label = 'sparrow' AND id LIKE '2024/%'"
            ) from error

    def count(self, where: str | None = None) -> int:
        """Count the images, or those for which an expression is true."""
        return len(self) if where is None else len(self.rows_where(where))

    def find(self, ids: Sequence[str]) -> dict[str, Record]:
        """Return the images of the gallery that have these ids."""
        return {record.id: record for record in self.records(self._matching(ids))}

    def numbers_of(self, ids: Sequence[str]) -> IntArray:
        """Return the row numbers (n,) int64 of images by id; all must exist."""
        table = self._matching(ids, ["id", "row"])
        numbers = dict(zip(table["id"].to_pylist(), table["row"].to_pylist(), strict=True))
        return np.array([numbers[name] for name in ids], np.int64)

    def unknown(self, id: str) -> UnknownNameError:
        """Return the error for an id that the gallery does not have."""
        return UnknownNameError(
            f"There is no image {id!r} in the gallery {str(self.folder)!r}. Ids are paths "
            "relative to the folder that was indexed, or the ids of the table."
        )

    def take(self, offsets: IntArray, *, embeddings: bool = True) -> list[Record]:
        """Return the images at (n,) offsets of a scan, in that order."""
        columns = list(self.schema.names)
        if self.manifest.keep_embeddings:
            columns = [name for name in columns if name != "embedding"]
            columns += ["embedding"] if embeddings else []
        with damage_named(self.folder):
            return self.records(self.rows_at(offsets, columns))

    def put(
        self,
        records: Sequence[Record],
        *,
        write: WriteFragments = write_here,
        finish: Callable[[Sequence[Record]], Sequence[Record]] | None = None,
    ) -> int:
        """Add images, replacing those of the same ids, in one commit; returns how many it replaced.

        Their ids are distinct; they become the last rows, replaced ones too. `write` writes the
        fragments, here or on other machines. `finish` is called first, under the lock, to give the
        records codes of the version that they are written to.
        """
        with self.changing():
            records = finish(records) if finish else records
            replaced = len(self._rows_of([record.id for record in records]))
            self.append(records, replacing=bool(replaced), write=write)
        return replaced

    def append(
        self,
        records: Sequence[Record],
        *,
        replacing: bool = False,
        write: WriteFragments = write_here,
    ) -> None:
        """Do the work of `put`; the caller holds the lock."""
        if not records:
            return
        if self._numbered != self.version:
            import pyarrow.compute as pc

            with damage_named(self.folder):
                scan = self.dataset.to_batches(columns=["row"])
                known = [pc.fill_null(batch.column("row"), -1) for batch in scan if batch.num_rows]
                last = max((pc.max(numbers).as_py() for numbers in known), default=-1)
            self._next_row = max(self._next_row, last + 1)
        rows = np.arange(self._next_row, self._next_row + len(records), dtype=np.int64)
        self.write_rows(records, rows, replacing=replacing, write=write)
        self._next_row += len(records)
        self._numbered = self.version

    def delete(self, ids: Sequence[str] | None = None, *, where: str | None = None) -> int:
        """Delete images by id, or by expression, in one commit; returns how many went."""
        if (ids is None) == (where is None):
            raise ConfigError("Say what to delete: either ids, or where=EXPRESSION (--where).")
        with self.changing():
            gone = self.rows_where(where) if where is not None else self._rows_of(ids or ())
            if len(gone):
                listed = ",".join(map(str, gone.tolist()))
                self.dataset.delete(where if where is not None else f"row IN ({listed})")
        return len(gone)

    def merge_files(self, *, above: int) -> None:
        """Merge small files if there are more than `above`; old versions stay readable."""
        if len(self.dataset.get_fragments()) > above:
            with self.changing(), damage_named(self.folder):
                self.dataset.optimize.compact_files(target_rows_per_fragment=1 << 20)
                self.refresh()

    def compact(self) -> int:
        """Merge small files, and drop all that no kept version needs; returns the bytes freed."""
        with self.changing(), damage_named(self.folder):
            self.dataset.optimize.compact_files(
                target_rows_per_fragment=1 << 20, materialize_deletions_threshold=0.0
            )
            self.refresh()
            before = release_all_but(self.dataset, self.manifest.before)
            # Under the lock no other process writes: files of no version can go.
            freed = self.dataset.cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
            )
            kept = [self, *(GalleryStore.open(self.folder, version=each) for each in before)]
            remove_all_but(self.folder, [store.manifest for store in kept])
            remove_temporaries(self.folder)
        return int(freed.bytes_removed)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, at the newest version."""
        with writing(self.folder, timeout=self.lock_timeout):
            self.refresh()
            yield

    def commit_manifest(self, manifest: Manifest) -> None:
        """Commit another manifest for the same rows; the caller holds the lock."""
        metadata = {name.decode(): text.decode() for name, text in _metadata(manifest).items()}
        self.dataset.update_schema_metadata(metadata)
        self._moved()

    def rewrite(self, tables: Iterable[Any], schema: Any, manifest: Manifest) -> None:
        """Replace all rows by those of tables, in one commit; the caller holds the lock.

        Tables are read one at a time, and have the columns of `schema`.
        """
        import lance
        from lance.fragment import write_fragments

        schema = schema.with_metadata(_metadata(manifest))
        rows = (batch for table in tables for batch in table.cast(schema).to_batches())
        reader = pa.RecordBatchReader.from_batches(schema, rows)
        with damage_named(self.folder):
            written = write_fragments(reader, self.dataset.uri, schema=schema, mode="overwrite")
            change = lance.LanceOperation.Overwrite(schema, list(written))
            commit = lance.LanceDataset.commit
            self._dataset = commit(self.dataset.uri, change, read_version=self.version)
        self._moved()

    def write_rows(
        self,
        records: Sequence[Record],
        rows: IntArray,
        *,
        replacing: bool,
        write: WriteFragments = write_here,
    ) -> None:
        """Write records with the row numbers (n,); the caller holds the lock.

        `replacing` replaces rows of the same ids.
        """
        import lance

        table = to_table(records, rows, self.dataset.schema)
        new = [name for name in table.column_names if name not in self.dataset.schema.names]
        if new:
            self.dataset.add_columns(pa.schema([table.schema.field(name) for name in new]))
        ordered = table.select(self.dataset.schema.names)
        if replacing:
            merge = self.dataset.merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(ordered)
        else:
            added = lance.LanceOperation.Append(write(ordered, self.dataset))
            commit = lance.LanceDataset.commit
            self._dataset = commit(self.dataset, added, read_version=self.version)

    def _rows_of(self, ids: Sequence[str]) -> IntArray:
        rows: IntArray = self._matching(ids, ["row"]).column("row").to_numpy()
        return rows

    def _matching(self, ids: Sequence[str], columns: list[str] | None = None) -> Any:
        """Return a table of the images with these ids, in bounded memory."""
        import pyarrow.compute as pc

        wanted = pa.array(ids, pa.string())
        start, found = 0, [np.empty(0, np.int64)]
        with damage_named(self.folder):
            for batch in self.dataset.to_batches(columns=["id"]):
                mask = pc.is_in(batch.column("id"), value_set=wanted)
                found.append(start + np.flatnonzero(mask.to_numpy(zero_copy_only=False)))
                start += batch.num_rows
            return self.dataset.take(np.concatenate(found).tolist(), columns=columns)

    def records(self, table: Any) -> list[Record]:
        """Turn rows of the dataset into records."""
        codes = code_matrix(table.column("code"), self.manifest.num_codebooks)
        kept = embedding_matrix(table["embedding"]) if "embedding" in table.column_names else None
        free = self.metadata_columns
        names = ["id", "uri", "label", "sha256", *free]
        return [
            Record(
                id=values["id"],
                uri=values["uri"],
                label=values["label"],
                sha256=values["sha256"],
                code=codes[number],
                metadata={name: values[name] for name in free},
                embedding=None if kept is None else kept[number],
            )
            for number, values in enumerate(table.select(names).to_pylist())
        ]


def _metadata(manifest: Manifest) -> dict[bytes, bytes]:
    """Return the metadata of a version's schema."""
    return {METADATA_KEY: json.dumps(manifest.to_dict()).encode()}


def _manifest_in(schema: Any, folder: Path) -> Manifest:
    """Return the manifest in the metadata of a version's schema."""
    with damage_named(folder):
        return parse_manifest(json.loads(schema.metadata[METADATA_KEY]), folder)
