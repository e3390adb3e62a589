"""The files of images: a record in, its bytes or a thumbnail out, and no other file of the machine.

A file is handed out only if a record of the gallery names it, it is a regular file, its bytes are
those that were indexed (by SHA-256) and a decoder takes them for an image. A path that was turned
into a link to something else, or a file that was overwritten, fails the third test.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass

from phpq.errors import BadImageError, UnknownNameError
from phpq.gallery.records import Record
from phpq.serve.decode_pool import DecodePool

SIZES = (96, 192, 384, 768)  # of thumbnails: few, so that the cache is of use
_LARGEST_FILE = 256 * 1024 * 1024
# What browsers show, and what cannot carry a script.
_MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
}


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as it is sent.

    Attributes:
        content: The bytes.
        media_type: As in image/jpeg.
        etag: Changes with the content, and only with it.
    """

    content: bytes
    media_type: str
    etag: str


class Pictures:
    """Reads the images of a gallery."""

    def __init__(self, decoders: DecodePool, *, cache_bytes: int) -> None:
        self._decoders = decoders
        self._room = cache_bytes
        self._cache: OrderedDict[str, Picture] = OrderedDict()
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
        etag = thumbnail_etag(record, side)
        with self._lock:
            kept = self._cache.get(etag)
            if kept is not None:
                self._cache.move_to_end(etag)
                return kept
        done = self._decoders.thumbnail(read_file(record), side, name=record.id)
        picture = Picture(done.content, "image/jpeg", etag)
        self._keep(picture)
        return picture

    def _keep(self, picture: Picture) -> None:
        with self._lock:
            if picture.etag in self._cache:
                return
            self._cache[picture.etag] = picture
            self._room -= len(picture.content)
            while self._room < 0 and self._cache:
                _, oldest = self._cache.popitem(last=False)
                self._room += len(oldest.content)


def thumbnail_etag(record: Record, side: int) -> str:
    """Return what a thumbnail is told apart by: the content of the file, and the size."""
    return f'"{record.sha256.hex()[:32]}-{side}"'


def has_file(uri: str | None) -> bool:
    """Say whether the file of an image is still where it was."""
    if uri is None or "\0" in uri:
        return False
    try:
        return stat.S_ISREG(os.stat(uri).st_mode)  # noqa: PTH116 - a URI, not a path
    except (OSError, ValueError):
        return False


def read_file(record: Record) -> bytes:
    """Read the file of a record.

    Raises:
        UnknownNameError: If it has none, or none that can be read.
        BadImageError: If it is not what was indexed.
    """
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
