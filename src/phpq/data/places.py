"""Files here or elsewhere: a path or a URI in, its bytes, its folder or its neighbours out.

URIs go through fsspec; the package of a protocol (s3fs, gcsfs, adlfs) is the user's to install.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from phpq.data.folder import HIDDEN, natural_key
from phpq.errors import ConfigError, DataError, PhpqError

Place = Path | str  # a path, or a URI
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ATTEMPTS = 3  # at a file elsewhere: networks fail for moments
_PAUSE = 0.5  # seconds before the second attempt, twice that before the third


def is_uri(text: object) -> bool:
    """Return whether a text names a file elsewhere, as in s3://bucket/birds/1.jpg."""
    return isinstance(text, str) and _URI.match(text) is not None


def suffix_of(place: Place) -> str:
    """Return the extension in lower case, as in ".csv"; a slash at the end does not count."""
    return PurePosixPath(str(place).rstrip("/")).suffix.lower()


def beside(place: Place, name: str) -> Place:
    """Return where a name leads that is written in the file at `place`."""
    if is_uri(name):
        return name
    if isinstance(place, Path):
        return place.parent / name
    return name if name.startswith("/") else f"{place.rpartition('/')[0]}/{name}"


def exists(place: str) -> bool:
    """Return whether there is a file; False where that cannot be known."""
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
    """Return the content of a file elsewhere; what may be a passing failure is tried again.

    Raises:
        OSError: If it cannot be read.
        ConfigError: If the protocol is unknown, or its package not installed.
    """
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
    """Yield files of a folder elsewhere as `walk_images` does: path relative to it, and URI.

    Args:
        root: The URI of a folder.
        extensions: Of the files that are wanted, in lower case.
    """
    files, top = filesystem(root)
    for parent, folders, names in _walked(files, top, root):
        kept = (f for f in folders if not f.startswith(HIDDEN) and not f.endswith(".lance"))
        folders[:] = sorted(kept, key=natural_key)
        for name in sorted(names, key=natural_key):
            if not name.startswith(HIDDEN) and suffix_of(name) in extensions:
                path = f"{parent.rstrip('/')}/{name}"
                yield path[len(top.rstrip("/")) :].lstrip("/"), files.unstrip_protocol(path)


def folders_in(root: str) -> set[str]:
    """Return the names of the folders in a folder elsewhere, in lower case."""
    files, top = filesystem(root)
    _, folders, _ = next(_walked(files, top, root))
    return {name.casefold() for name in folders}


def _walked(files: Any, top: str, root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does: folders that are taken out of the list are not entered."""
    try:
        yield from files.walk(top.rstrip("/") or "/", on_error="raise")
    except Exception as error:
        raise DataError(f"The folder {root!r} cannot be listed: {_why(error)}.") from error


def filesystem(uri: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URI, and the path in it.

    Raises:
        ConfigError: If the protocol is unknown, or its package is not installed.
    """
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
