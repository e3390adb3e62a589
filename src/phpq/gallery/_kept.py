"""Old versions that stay for a rollback: a mark in Lance, which its clean-up respects.

A mark is made before the commit that needs it, so that a version which names another to go back to
always has it. A process that is killed in between leaves a mark that no version needs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_PREFIX = "phpq-before-"


def keep_version(dataset: Any, version: int) -> None:
    """Keep a version until it is released."""
    if not is_kept(dataset, version):
        dataset.tags.create(f"{_PREFIX}{version}", version)


def is_kept(dataset: Any, version: int) -> bool:
    """Say whether a version is kept."""
    return f"{_PREFIX}{version}" in dataset.tags.list()


def release_all_but(dataset: Any, version: int) -> list[int]:
    """Keep no version but one, if that is kept; returns those that are left."""
    left: list[int] = []
    for name in list(dataset.tags.list()):
        number = name.removeprefix(_PREFIX)
        if number == name or not number.isdecimal():
            continue  # somebody else's
        if int(number) == version:
            left.append(version)
            continue
        with suppress(ValueError, OSError):  # another process was faster
            dataset.tags.delete(name)
    return left
