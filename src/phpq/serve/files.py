"""The files of images: a record in, its bytes out, and no other file of the machine; and changes.

A file is handed out only if a record of the gallery names it, it is a regular file, its bytes are
those that were indexed (by SHA-256) and a decoder takes them for an image. A path that was turned
into a link to something else, or a file that was overwritten, fails the third test.

An upload is kept in the gallery under the SHA-256 of its content, so that no name of a client ever
becomes a path.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from phpq.errors import BadImageError, ConfigError, DataError, UnknownNameError
from phpq.files import write_bytes
from phpq.gallery.records import Record, sql_text
from phpq.gallery.store import GalleryStore
from phpq.serve.decode_pool import DecodePool

if TYPE_CHECKING:
    from phpq.gallery import AddReport
    from phpq.gallery.models import Models

SIZES = (96, 192, 384, 768)  # of thumbnails: few, so that the cache is of use
UPLOADS = "uploads"  # the folder of the gallery that holds them
_LARGEST_FILE = 256 * 1024 * 1024
# What browsers show, and what cannot carry a script.
_MEDIA_TYPES = {
    name: f"image/{name.lower()}" for name in ["JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF"]
}
_EXTENSIONS = {"JPEG": ".jpg", "TIFF": ".tif"}
_LOCK_SECONDS = 10.0  # to wait for a writer of another process
_MOST_KEYS = 64
_LONGEST_TEXT = 2000


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as it is sent."""

    content: bytes
    media_type: str  # as in image/jpeg
    etag: str  # changes with the content, and only with it


class Pictures:
    """Reads the images of a gallery."""

    def __init__(self, decoders: DecodePool, *, cache_bytes: int) -> None:
        self._decoders = decoders
        self._cache: LRUCache[str, Picture] = LRUCache(
            cache_bytes, getsizeof=lambda picture: len(picture.content)
        )
        self._lock = threading.Lock()

    def original(self, record: Record) -> Picture:
        """Return the file of an image as it was indexed."""
        content = read_file(record)
        checked = self._decoders.check(content, name=record.id)
        media_type = _MEDIA_TYPES.get(checked.format, "application/octet-stream")
        return Picture(content, media_type, f'"{record.sha256.hex()}"')

    def thumbnail(self, record: Record, size: int) -> Picture:
        """Return a JPEG whose longer side is at most `size`, rounded up to one of `SIZES`."""
        side = next((side for side in SIZES if side >= size), SIZES[-1])
        etag = f'"{record.sha256.hex()[:32]}-{side}"'
        with self._lock:
            kept = self._cache.get(etag)
        if kept is not None:
            return kept
        done = self._decoders.thumbnail(read_file(record), side, name=record.id)
        picture = Picture(done.content, "image/jpeg", etag)
        with self._lock:
            if len(picture.content) <= self._cache.maxsize:
                self._cache[etag] = picture
        return picture


def has_file(uri: str | None) -> bool:
    """Say whether the file of an image is still where it was."""
    if uri is None or "\0" in uri:
        return False
    try:
        return stat.S_ISREG(os.stat(uri).st_mode)  # noqa: PTH116 - a URI, not a path
    except (OSError, ValueError):
        return False


def read_file(record: Record) -> bytes:
    """Read the file of a record, if there is one and it is what was indexed."""
    if record.uri is None or "\0" in record.uri:
        raise UnknownNameError(
            f"The image {record.id!r} has no file: it was added as pixels. Add it from a file to "
            "see it here."
        )
    # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(record.uri, flags)
    except (OSError, ValueError) as error:
        raise _gone(record) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _gone(record)
        if status.st_size > _LARGEST_FILE:
            raise BadImageError(
                f"Cannot read the image {record.id!r}: its file has {status.st_size:,} bytes, more "
                f"than the limit of {_LARGEST_FILE:,}."
            )
        with os.fdopen(handle, "rb", closefd=False) as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise _gone(record) from error
    finally:
        os.close(handle)
    if hashlib.sha256(content).digest() != record.sha256:
        raise BadImageError(
            f"Cannot read the image {record.id!r}: its file is not the one that was indexed. Index "
            "it again to see it here."
        )
    return content


def _gone(record: Record) -> UnknownNameError:
    return UnknownNameError(
        f"The file of the image {record.id!r} is no longer where it was indexed. Put it back, or "
        "index it where it is now."
    )


def open_to_change(folder: Path) -> GalleryStore:
    """Open the gallery of the server; a change of it waits for other writers, but not for long."""
    store = GalleryStore.open(folder)
    store.lock_timeout = _LOCK_SECONDS
    return store


class Writer:
    """Adds and deletes; one call at a time."""

    def __init__(self, folder: Path, models: Models, decoders: DecodePool) -> None:
        self._folder = folder
        self._models = models
        self._decoders = decoders

    def add(
        self,
        content: bytes,
        *,
        id: str,
        label: str | None,
        metadata: Mapping[str, Any],
        replace: bool,
    ) -> AddReport:
        """Add one image."""
        kind = self._decoders.check(content, name=id).format
        file = self._file(content, kind)
        new = not file.exists()
        if new:
            file.parent.mkdir(exist_ok=True)
            write_bytes(file, content)
        store = open_to_change(self._folder)
        replaced = store.find([id]) if replace else {}
        row = {"path": file, "id": id, "label": label}
        made_by = store.manifest.model_fingerprint
        try:
            try:
                report = self._put(store, row, metadata, replace)
            except DataError:
                newer = open_to_change(self._folder)
                if newer.manifest.model_fingerprint == made_by:
                    raise
                report = self._put(newer, row, metadata, replace)  # upgraded this moment
        except BaseException:
            if new:
                self._remove_unused([str(file)])
            raise
        self._remove_unused([record.uri for record in replaced.values()])
        return report

    def _put(
        self,
        store: GalleryStore,
        row: Mapping[str, Any],
        metadata: Mapping[str, Any],
        replace: bool,
    ) -> AddReport:
        from phpq.gallery import Gallery

        gallery = Gallery(store, self._models)
        return gallery.add([row], metadata=metadata, on_bad="refuse", replace=replace)

    def delete(self, ids: Sequence[str]) -> tuple[int, list[str]]:
        """Delete images in one commit; returns how many went, and the ids that are not there."""
        store = open_to_change(self._folder)
        found = store.find(ids)
        gone = store.delete(list(found)) if found else 0
        self._remove_unused([record.uri for record in found.values()])
        return gone, sorted(set(ids) - set(found))

    def _file(self, content: bytes, kind: str) -> Path:
        suffix = _EXTENSIONS.get(kind, f".{kind.lower()}" if kind.isalnum() else ".image")
        name = hashlib.sha256(content).hexdigest()
        return (self._folder / UPLOADS / f"{name}{suffix}").absolute()

    def _remove_unused(self, uris: Sequence[str | None]) -> None:
        """Remove the files of `uris` that were uploaded here and that no record names any more."""
        home = (self._folder / UPLOADS).absolute()
        own = [uri for uri in dict.fromkeys(uris) if uri and Path(uri).parent == home]
        if own:
            store = open_to_change(self._folder)
            for uri in own:
                if not store.count(f"uri = {sql_text(uri)}"):
                    Path(uri).unlink(missing_ok=True)


def parse_metadata(text: str | None) -> dict[str, Any]:
    """Read the metadata of an upload."""
    if not text or not text.strip():
        return {}
    example = 'such as {"year": 2024, "place": "Oslo"}.'
    seen = f"metadata={text[:80]!r} is"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{seen} no JSON ({error}); expected an object {example}") from error
    if not isinstance(values, dict) or len(values) > _MOST_KEYS:
        expected = f"expected a JSON object of at most {_MOST_KEYS} values, {example}"
        raise ConfigError(f"{seen} not allowed; {expected}")
    for name, value in values.items():
        if len(name) > 100 or not _is_scalar(value):
            raise ConfigError(
                f"The metadata {name[:100]!r} is {str(value)[:80]!r}; expected a text of at most "
                f"{_LONGEST_TEXT} characters, a finite number of at most 64 bits, true, false or "
                "null."
            )
    return values


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT and "\0" not in value
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):  # truth values too
        return -(1 << 63) <= value < 1 << 63
    return value is None
