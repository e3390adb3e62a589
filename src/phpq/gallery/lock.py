"""One writer at a time: a lock file that the operating system frees when its process dies.

Nothing has to be cleaned up after a kill, and readers never wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from phpq.errors import DataError

LOCK = "writer.lock"
_PAUSE = 0.02  # seconds between two attempts


@contextmanager
def writing(folder: Path, *, timeout: float = 60.0) -> Iterator[None]:
    """Hold the right to change the gallery in `folder`.

    Args:
        folder: The gallery.
        timeout: Seconds to wait for another writer.

    Raises:
        DataError: If another process still writes after that time, or the folder is read-only.
    """
    path = folder / LOCK
    try:
        stream = path.open("a+b")
    except OSError as error:
        raise DataError(
            f"The gallery {str(folder)!r} cannot be changed: {error.strerror or error}. "
            "Check that the folder is there and that you may write to it."
        ) from error
    with stream:
        _wait(stream, folder, timeout)
        stream.truncate(0)
        stream.write(str(os.getpid()).encode())
        stream.flush()
        yield  # closing the file frees the lock, and so does the death of the process


def _wait(stream: BinaryIO, folder: Path, timeout: float) -> None:
    end = time.monotonic() + timeout
    while not _try_lock(stream):
        if time.monotonic() >= end:
            stream.seek(0)
            writer = stream.read(20).decode(errors="replace").strip() or "unknown"
            raise DataError(
                f"The gallery {str(folder)!r} is being changed by another process (number "
                f"{writer}), still after {timeout:g} seconds. Nothing was lost: run this again "
                "when that one is done."
            )
        time.sleep(_PAUSE)


def _try_lock(stream: BinaryIO) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            # Far behind the content: Windows locks bytes, and the process number must be readable.
            stream.seek(1 << 20)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
