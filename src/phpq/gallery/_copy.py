"""A checked copy of one version's rows, `images.arrow`, that a search reads without Lance.

Lance takes longer to import than most galleries take to search. So the first reader of a version
writes its rows, without embeddings and in the order of a scan, to one Arrow file with a SHA-256.
The copy is only a cache. It is ignored unless it is intact, Lance's newest version file is, byte
for byte, the one that it was made from, and the data files of that version exist. Nobody waits for
it, and a reader that cannot write it does without.

Kept embeddings are copied to a second file, `images.float16`. A search reads few of its rows, those
of equal scores, so that each row has its own checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import IntArray
from phpq.files import replacing
from phpq.gallery.folder import DAMAGE, IMAGES, newest_seen

COPY = "images.arrow"
EMBEDDINGS = "images.float16"
_KEY = b"phpq copy"  # of the metadata in the schema
_MAX_ROWS = 1_000_000  # in larger galleries the time to import Lance does not matter
_MAX_BYTES = 1 << 30  # of copied embeddings; larger ones are read with Lance
_EMBEDDING_ROWS = 4096  # that are copied at once
_VERSIONS = "_versions"
_LAST = (1 << 64) - 1  # the names of Lance's version files count down from here


@dataclass(frozen=True, eq=False)
class Copy:
    """The copied rows of a version."""

    version: int
    table: Any  # a memory-mapped Arrow table: all columns but `embedding`, in the order of a scan
    file: Path  # of the copied embeddings, if there are any
    mark: bytes  # the first bytes of that file, if it belongs to this copy
    dim: int  # D of the embeddings; 0 if none were copied

    def embeddings_at(self, offsets: IntArray) -> NDArray[np.float16] | None:
        """Return the embeddings (n, D) at offsets of a scan; None if they cannot be read here."""
        if self._embeddings is None:
            return None
        rows = self._embeddings[offsets]
        if _checksums(rows["vector"], offsets.tolist()) != rows["check"].tolist():
            return None
        vectors: NDArray[np.float16] = np.ascontiguousarray(rows["vector"])
        return vectors

    @cached_property
    def _embeddings(self) -> NDArray[Any] | None:
        try:
            if not self.dim:
                return None
            with self.file.open("rb") as file:  # opened once: another may take its name
                if file.read(len(self.mark)) != self.mark:
                    return None
                shape, kind = (self.table.num_rows,), _row_type(self.dim)
                return np.memmap(file, kind, mode="r", offset=len(self.mark), shape=shape)
        except DAMAGE:
            return None


def read_copy(folder: Path, version: int | None = None) -> Copy | None:
    """Return the copy of a gallery's newest version; None without a valid one.

    Also None if `version` is another than the newest.
    """
    try:
        newest = _newest(folder)
        if version not in (None, _number(newest)):
            return None
        content = pa.memory_map(str(folder / COPY)).read_buffer()
        body = content.slice(0, max(0, content.size - hashlib.sha256().digest_size))
        if hashlib.sha256(body).digest() != content.slice(body.size).to_pybytes():
            return None
        table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
        about = json.loads(table.schema.metadata[_KEY])
        fits = (
            about["version_file"] == _describe(newest)
            and _number(newest) >= newest_seen(folder)  # else the newest version file is lost
            and all(
                (folder / IMAGES / name).stat().st_size == size
                for name, size in about["files"].items()
            )
            # Again: listing a folder that changes may miss its newest file.
            and _newest(folder) == newest
        )
        mark = _mark(about["version_file"])
        copy = Copy(_number(newest), table, folder / EMBEDDINGS, mark, int(about["dim"]))
        return copy if fits else None
    except (*DAMAGE, TypeError, AttributeError):
        return None


def write_copy(folder: Path, dataset: Any) -> None:
    """Copy the version of an open Lance dataset, unless it is old, too large or unwritable."""
    with contextlib.suppress(*DAMAGE):
        version, newest = int(dataset.version), _newest(folder)
        if _number(newest) != version or dataset.count_rows() > _MAX_ROWS:
            return
        described = _describe(newest)
        files: list[str] = []
        for part in dataset.get_fragments():
            files.extend(f"data/{file.path}" for file in part.data_files())
            files.extend([part.deletion_file()] if part.deletion_file() else [])
        sizes = {name: (folder / IMAGES / name).stat().st_size for name in files}
        dim = _copy_embeddings(folder, dataset, _mark(described))
        about = {"version_file": described, "files": sizes, "dim": dim}
        names = [name for name in dataset.schema.names if name != "embedding"]
        table = dataset.to_table(columns=names)
        metadata = dataset.schema.metadata or {}
        table = table.replace_schema_metadata({**metadata, _KEY: json.dumps(about)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue()
        with replacing(folder / COPY) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.write(hashlib.sha256(content).digest())


def _copy_embeddings(folder: Path, dataset: Any, mark: bytes) -> int:
    """Copy the embeddings after a mark; returns D, or 0 if there are none or too many."""
    if "embedding" not in dataset.schema.names:
        return 0
    dim = int(dataset.schema.field("embedding").type.list_size)
    if dataset.count_rows() * _row_type(dim).itemsize > _MAX_BYTES:
        return 0
    first = 0
    with replacing(folder / EMBEDDINGS) as temporary, temporary.open("wb") as file:
        file.write(mark)
        for batch in dataset.to_batches(columns=["embedding"], batch_size=_EMBEDDING_ROWS):
            flat = batch.column("embedding").flatten().to_numpy(zero_copy_only=False)
            rows = np.empty(batch.num_rows, _row_type(dim))
            rows["vector"] = flat.reshape(-1, dim)
            rows["check"] = _checksums(rows["vector"], range(first, first + len(rows)))
            rows.tofile(file)
            first += len(rows)
    return dim


def _row_type(dim: int) -> np.dtype[Any]:
    return np.dtype([("vector", "<f2", (dim,)), ("check", "<u4")])


def _checksums(vectors: NDArray[np.float16], offsets: Sequence[int]) -> list[int]:
    """Return a checksum of each embedding and its offset: a moved row is damage, too."""
    pairs = zip(vectors, offsets, strict=True)
    return [zlib.crc32(vector.tobytes(), offset & 0xFFFFFFFF) for vector, offset in pairs]


def _mark(version_file: str) -> bytes:
    """Return 32 bytes that identify the embeddings of a version."""
    return hashlib.sha256(version_file.encode()).digest()


def _newest(folder: Path) -> Path:
    """Return Lance's newest version file; a ValueError without one."""
    return max((folder / IMAGES / _VERSIONS).glob("*.manifest"), key=_number)


def _number(file: Path) -> int:
    """Return the version of a version file; -1 for other files."""
    if not file.stem.isdecimal():
        return -1
    number = int(file.stem)
    return _LAST - number if len(file.stem) == len(str(_LAST)) else number


def _describe(file: Path) -> str:
    """Return name and hash of a version file, which are unique: it names its data files."""
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"
