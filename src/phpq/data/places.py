"""Local and remote files: paths and URIs in, bytes and listings out.

URIs are read by fsspec; the user installs the package of a protocol (s3fs, gcsfs, adlfs). The
origin of an image is where its bytes come from: a file, a URI, a cell of a table, or memory. It is
small, so that it can be sent to the process or machine that reads and encodes the image.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import IO, Any

from PIL import Image

from phpq.data.folder import HIDDEN, natural_key
from phpq.errors import BadImageError, ConfigError, DataError, PhpqError

Place = Path | str  # a path, or a URI
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ATTEMPTS = 3  # to read a remote file
_PAUSE = 0.5  # seconds before the second attempt, twice that before the third
_BLOCK = 64  # rows of a Parquet column that are read at once
_BLOCKS = 4  # such blocks in memory: threads read slightly out of order


def is_uri(text: object) -> bool:
    """Tell whether a text is a URI, as in s3://bucket/birds/1.jpg."""
    return isinstance(text, str) and _URI.match(text) is not None


def suffix_of(place: Place) -> str:
    """Return the extension in lower case, as in ".csv"; a slash at the end does not count."""
    return PurePosixPath(str(place).rstrip("/")).suffix.lower()


def beside(place: Place, name: str) -> Place:
    """Resolve a name that is written in the file at `place`."""
    if is_uri(name):
        return name
    if isinstance(place, Path):
        return place.parent / name
    return name if name.startswith("/") else f"{place.rpartition('/')[0]}/{name}"


def exists(place: str) -> bool:
    """Tell whether a file exists; False if that cannot be found out."""
    if not is_uri(place):
        return Path(place).is_file()
    try:
        files, path = filesystem(place)
        return bool(files.isfile(path))
    except Exception:  # each protocol has errors of its own
        return False


def open_place(place: Place) -> IO[bytes]:
    """Open a file for reading; a `DataError` names one that cannot be opened."""
    try:
        if isinstance(place, Path):
            return place.open("rb")
        files, path = filesystem(place)
        stream: IO[bytes] = files.open(path, "rb")
    except PhpqError:
        raise
    except Exception as error:
        raise DataError(f"{str(place)!r} cannot be opened: {_why(error)}.") from error
    return stream


def read_uri(uri: str) -> bytes:
    """Return the content of a remote file; temporary failures are retried."""
    files, path = filesystem(uri)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            content: bytes = files.cat_file(path)
            return content
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except Exception as error:
            if attempt == _ATTEMPTS:
                raise OSError(_why(error)) from error
            time.sleep(attempt * _PAUSE)
    raise AssertionError("unreachable")


def walk_uri(root: str, extensions: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield files of a remote folder in the order of `walk_images`: relative path, and URI."""
    files, top = filesystem(root)
    for parent, folders, names in _walked(files, top, root):
        kept = (f for f in folders if not f.startswith(HIDDEN) and not f.endswith(".lance"))
        folders[:] = sorted(kept, key=natural_key)
        for name in sorted(names, key=natural_key):
            if not name.startswith(HIDDEN) and suffix_of(name) in extensions:
                path = f"{parent.rstrip('/')}/{name}"
                yield path[len(top.rstrip("/")) :].lstrip("/"), files.unstrip_protocol(path)


def folders_in(root: str) -> set[str]:
    """Return the names of the folders in a remote folder, in lower case."""
    files, top = filesystem(root)
    _, folders, _ = next(_walked(files, top, root))
    return {name.casefold() for name in folders}


def _walked(files: Any, top: str, root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does: folders that are removed from the list are not entered."""
    try:
        yield from files.walk(top.rstrip("/") or "/", on_error="raise")
    except Exception as error:
        raise DataError(f"The folder {root!r} cannot be listed: {_why(error)}.") from error


def filesystem(uri: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URI, and the path in it."""
    from fsspec.core import url_to_fs

    protocol = uri.partition("://")[0]
    try:
        files, path = url_to_fs(uri)
    except ImportError as error:
        raise ConfigError(
            f"{uri!r} needs a package that is not installed: {_why(error)}. Install the one for "
            f"{protocol}:// on every machine that reads images, and run this again."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{uri!r} cannot be read: {_why(error)}. Use what fsspec knows: file://, s3://, gs://, "
            "abfs://, https:// and the like."
        ) from error
    return files, str(path)


def _why(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text.splitlines()[0] if text else type(error).__name__


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
    """Return the path or URI of an image; None if it does not come from a file."""
    if isinstance(origin, Path):
        return str(origin.absolute())
    return origin.uri if isinstance(origin, RemoteFile) else None


def content_hash(origin: Origin) -> tuple[bytes, bytes | Image.Image]:
    """Return the SHA-256 of an image's content, and what to decode, or raise a `BadImageError`."""
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
    """Open a local or remote Parquet file."""
    from pyarrow import parquet

    # Arrow opens and closes local files itself.
    return parquet.ParquetFile(open_place(place) if is_uri(place) else str(place))


class _ParquetColumn:
    """One column, read block by block, for rows that are requested roughly in order."""

    def __init__(self, table: str, column: str) -> None:
        self._file = parquet_file(table)
        self._column = column
        about = self._file.metadata
        sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]
        self._kept: deque[tuple[int, list[Any]]] = deque(maxlen=_BLOCKS)
        self._stream: Any = iter(())
        self._next = self._end = 0  # next row of the stream, and the end of its row group
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
