"""Where the bytes of an image come from: a file, a URI, a cell of a table, or memory.

An origin is a few words; whoever encodes the image, here or on another machine, reads its bytes.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from PIL import Image

from phpq.data.places import Place, is_uri, open_place, read_uri
from phpq.errors import BadImageError

_BLOCK = 64  # images of a Parquet column that are held at once
_BLOCKS = 4  # such blocks: threads read a little out of order


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that fsspec reads."""

    uri: str  # as in s3://bucket/birds/1.jpg

    def read(self) -> bytes:
        """Return its content."""
        return read_uri(self.uri)

    def __str__(self) -> str:
        return self.uri


@dataclass(frozen=True, slots=True)
class TableCell:
    """The bytes of an image file in a row of a Parquet file or a Lance dataset."""

    table: str  # path or URI
    row: int  # counted from 0
    column: str  # binary, or a struct with a binary field `bytes`
    version: int | None = None  # of a Lance dataset

    def read(self) -> bytes:
        """Return its content."""
        if self.version is None:
            value = _parquet_column(self.table, self.column).read(self.row)
        else:
            rows = _lance_dataset(self.table, self.version).take([self.row], columns=[self.column])
            value = rows.column(0)[0].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if not content:
            raise OSError("the cell is empty")
        return bytes(content)

    def __str__(self) -> str:
        return f"{self.table}#{self.row}"


Origin = Path | RemoteFile | TableCell | bytes | Image.Image


def origin_at(place: Path | str) -> Path | RemoteFile:
    """Return the origin of a path or a URI."""
    return RemoteFile(str(place)) if is_uri(place) else Path(place).expanduser()


def uri_of(origin: Origin) -> str | None:
    """Return where the file of an image is; None if it comes from no file."""
    if isinstance(origin, Path):
        return str(origin.absolute())
    return origin.uri if isinstance(origin, RemoteFile) else None


def content_hash(origin: Origin) -> tuple[bytes, bytes | Image.Image]:
    """Return the SHA-256 of an image's content, and what to decode.

    Raises:
        BadImageError: If the content cannot be read.
    """
    if isinstance(origin, Image.Image):
        about = f"{origin.mode} {origin.size} ".encode()
        return hashlib.sha256(about + origin.tobytes()).digest(), origin
    if isinstance(origin, bytes):
        return hashlib.sha256(origin).digest(), origin
    try:
        content = origin.read_bytes() if isinstance(origin, Path) else origin.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadImageError(f"Cannot read the image {str(origin)!r}: {reason}.") from error
    return hashlib.sha256(content).digest(), content


def parquet_file(place: Place) -> Any:
    """Open a Parquet file, here or elsewhere."""
    from pyarrow import parquet

    # Arrow opens and closes a file of this machine by itself.
    return parquet.ParquetFile(open_place(place) if is_uri(place) else str(place))


class _ParquetColumn:
    """One column, read forwards block by block, whichever of its next rows is asked for."""

    def __init__(self, table: str, column: str) -> None:
        self._file = parquet_file(table)
        self._column = column
        about = self._file.metadata
        sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]
        self._kept: deque[tuple[int, list[Any]]] = deque(maxlen=_BLOCKS)
        self._stream: Any = iter(())
        self._next = self._end = 0  # rows between which the stream is
        self._lock = threading.Lock()

    def read(self, row: int) -> Any:
        """Return the value of a row, counted over all row groups."""
        import pyarrow as pa

        with self._lock:
            while True:
                for start, values in self._kept:
                    if start <= row < start + len(values):
                        return values[row - start]
                try:
                    self._advance(row)
                except (pa.ArrowException, StopIteration) as error:
                    raise OSError(f"the table is damaged ({error})") from error

    def _advance(self, row: int) -> None:
        if not self._next <= row < self._end:
            group = bisect_right(self._starts, row) - 1
            self._next, self._end = self._starts[group], self._starts[group + 1]
            self._stream = self._file.iter_batches(
                batch_size=_BLOCK, row_groups=[group], columns=[self._column]
            )
        values = next(self._stream).column(0).to_pylist()
        self._kept.append((self._next, values))
        self._next += len(values)


_parquet_column = lru_cache(maxsize=4)(_ParquetColumn)


@lru_cache(maxsize=4)
def _lance_dataset(table: str, version: int) -> Any:
    import lance

    return lance.dataset(table, version=version)
