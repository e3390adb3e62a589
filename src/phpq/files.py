"""Files that appear whole or not at all: a crash leaves the old one or the new one, never half."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phpq.errors import ConfigError, FormatError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write; written without an error, it takes that of `path`.

    It lies in a folder of its own beside `path`: some libraries write a temporary file, with a name
    of their own, beside the one that they are asked for. A killed process leaves that folder, which
    `remove_temporaries` removes.
    """
    with tempfile.TemporaryDirectory(
        dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
    ) as room:
        temporary = Path(room) / path.name
        yield temporary
        with temporary.open("r+b") as file:  # Windows syncs only what may be written
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # libraries may make it private; what we write is for others too
        _move(temporary, path)


def _move(file: Path, target: Path) -> None:
    """Let a file take the name of another.

    Windows refuses that while somebody has the other open, as a reader or a virus scanner has for
    a moment: it is tried again for a moment.
    """
    for pause in (0.02, 0.05, 0.1, 0.2):
        try:
            file.replace(target)
            return
        except PermissionError:
            time.sleep(pause)
    file.replace(target)


def make_folder(folder: Path, *, within: Sequence[str] = ("",)) -> None:
    """Make a folder for results, and the folders `within` it; a `ConfigError` if that fails."""
    try:
        for name in within:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot make the folder {str(folder)!r}: {error.strerror}. Give another (--out DIR)."
        ) from error


def is_taken(path: Path) -> bool:
    """Tell whether there is anything but an empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left of the files that they were writing in a folder."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one atomic step."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one atomic step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write plain data as one JSON document in one atomic step."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, *, remedy: str) -> dict[str, Any]:
    """Read one JSON object; the message about a damaged one ends with the remedy."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{str(path)!r} is damaged: {error}. {remedy}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{str(path)!r} is damaged: it is not a JSON object. {remedy}")
    return content
