"""Damage on disk: what Lance and Arrow raise becomes a message that names the repair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from phpq.errors import FormatError, PhpqError
from phpq.gallery.manifest import repair_command

IMAGES = "images.lance"
HINT = "_versions/latest_version_hint.json"
# What is raised for a damaged or missing file.
DAMAGE = (ValueError, OSError, pa.ArrowException, RuntimeError, KeyError)


def newest_seen(folder: Path) -> int:
    """Return the newest version that Lance noted down, 0 if there is no note."""
    try:
        return int(json.loads((folder / IMAGES / HINT).read_text("utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # only a hint: Lance does without it too


@contextmanager
def damage_named(folder: Path) -> Iterator[None]:
    """Turn what Lance and Arrow raise into a `FormatError` that names the repair."""
    try:
        yield
    except PhpqError:
        raise
    except DAMAGE as error:
        raise FormatError(
            f"The gallery {str(folder)!r} is damaged: {reason(error)}. {repair_command(folder)}"
        ) from error


def reason(error: Exception) -> str:
    """Return what Lance says without the place in its source."""
    return str(error).split(", /")[0].rstrip(".") or type(error).__name__
