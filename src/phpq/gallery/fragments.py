"""Rows as files of a Lance dataset that no version names yet: an Arrow table in, fragments out.

A fragment is seen by nobody before it is committed (`GalleryStore.put`), and one that never is, is
removed by `GalleryStore.compact`. So any process may write them, and may die while it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
from lance.fragment import write_fragments

WriteFragments = Callable[[Any, Any], list[Any]]  # a table and a dataset in, fragments out


def write_here(table: Any, dataset: Any) -> list[Any]:
    """Write a table with the columns of an open dataset."""
    return list(write_fragments(table, dataset, mode="append"))


def write_at(table: Any, uri: str, version: int) -> list[Any]:
    """Write a table with the columns of a version of the dataset at `uri`, from any machine."""
    return write_here(table, lance.dataset(uri, version=version))
