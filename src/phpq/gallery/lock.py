"""One writer at a time: a lock file that the operating system frees when its process dies.

Nothing has to be cleaned up after a kill, and readers never wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from phpq.errors import DataError

LOCK = "writer.lock"


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
    lock = FileLock(path, timeout=timeout, poll_interval=0.02)
    try:
        folder.stat()  # filelock would make a folder that is not there
        lock.acquire()
    except Timeout as error:
        raise DataError(
            f"The gallery {str(folder)!r} is being changed by another process (number "
            f"{_writer(path)}), still after {timeout:g} seconds. Nothing was lost: run this again "
            "when that one is done."
        ) from error
    except OSError as error:
        raise DataError(
            f"The gallery {str(folder)!r} cannot be changed: {error.strerror or error}. "
            "Check that the folder is there and that you may write to it."
        ) from error
    try:
        with contextlib.suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _writer(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:20].strip() or "unknown"
    except OSError:
        return "unknown"
