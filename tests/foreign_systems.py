"""Linux that refuses what Windows refuses: to move or remove a file that is open or mapped.

It looks at this process alone (/proc/self), which is where our own mistakes would be.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def _in_use(path: Path) -> bool:
    """Return whether this process has a file open, or mapped into memory."""
    name = str(path.absolute())
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()) == name:
                return True
        except OSError:  # the listing itself, closed since
            continue
    maps = Path("/proc/self/maps").read_text("utf-8", errors="replace")
    return any(line.endswith(f" {name}") for line in maps.splitlines())


def imitate_windows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse as Windows does from now on; returns a list that grows by what was refused."""
    import fcntl  # which Windows itself has not

    refused: list[str] = []

    def guard(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def checked(file: Any, *places: Any, **options: Any) -> Any:
            for place in (file, *places):
                if isinstance(place, str | Path) and Path(place).is_file() and _in_use(Path(place)):
                    refused.append(f"{name} {place}")
                    raise PermissionError(errno.EACCES, "used by another process", str(place))
            return real(file, *places, **options)

        monkeypatch.setattr(owner, name, checked)

    for name in ("replace", "rename", "unlink"):
        guard(Path, name)
    for name in ("replace", "rename", "unlink", "remove"):
        guard(os, name)
    sync = os.fsync

    def checked_sync(file: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            refused.append(f"fsync {file}")
            raise OSError(errno.EBADF, "Bad file descriptor")
        sync(file)

    monkeypatch.setattr(os, "fsync", checked_sync)
    return refused
