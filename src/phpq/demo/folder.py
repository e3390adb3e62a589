"""The folder of a demo: new files are made in a corner of it and moved once they are complete.

A crash or Ctrl-C leaves an earlier demo as it was. What is not the demo's own is never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phpq.errors import ConfigError

MADE_BY = "phpq demo"
UNFINISHED = ".unfinished"  # inside the folder, so that moving what is complete is only a rename


@contextmanager
def workshop(folder: Path, *, mark: str) -> Iterator[Path]:
    """Yield an empty folder inside `folder` that is gone afterwards, whatever happens.

    `folder` is new, empty, or that of an earlier demo, known by a JSON file of the name `mark`.
    """
    _check(folder, mark)
    unfinished, existed = folder / UNFINISHED, folder.is_dir()
    try:
        if unfinished.is_dir():  # of a demo that was killed
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot write to the folder {str(folder)!r}: {error.strerror}. "
            "Give another (--out DIR)."
        ) from error
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not existed and not any(folder.iterdir()):
            folder.rmdir()


def install(unfinished: Path, folder: Path, *, names: tuple[str, ...]) -> None:
    """Put what is complete in its place.

    Args:
        unfinished: Of `workshop`.
        folder: Where each name goes; what has that name is replaced, everything else stays.
        names: Files and folders, as "runs/16"; the file that marks a demo comes last.
    """
    replaced = unfinished / "replaced"
    for name in names:
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        if place.is_dir():  # a folder cannot take the name of one that is not empty
            old = replaced / name
            old.parent.mkdir(parents=True, exist_ok=True)
            place.rename(old)
        (unfinished / name).replace(place)


def _check(folder: Path, mark: str) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file. Give a folder (--out DIR).")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / UNFINISHED).is_dir() and not _marked(folder / mark):
        raise ConfigError(
            f"{str(folder)!r} is not empty and holds no earlier demo, so nothing in it is touched. "
            "Give a new or empty folder (--out DIR)."
        )


def _marked(path: Path) -> bool:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("made_by") == MADE_BY
