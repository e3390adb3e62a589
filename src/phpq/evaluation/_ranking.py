"""From scores to ranked tie groups: what every retrieval measure is computed from.

A gallery with short codes has many equal scores. `rank_codes`, `rank_embeddings` and `rank_rows`
sort the gallery for each query, merge ties, and keep what the measures in `metrics.py` need: the
tie groups that hold a relevant item, and whether the first hit is relevant. They yield blocks of
queries, so that memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import (
    CodeArray,
    CodeGroups,
    FloatArray,
    IntArray,
    check_embeddings,
    group_codes,
    score_codes,
)
from phpq.errors import ShapeError

_BLOCK_SCORES = 1 << 18  # scores sorted at once; larger blocks fall out of the cache
_SIZE_BITS = 32
_SIZE_MASK = (1 << _SIZE_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class TieGroups:
    """The T tie groups with a relevant item, for a block of B queries, best score first."""

    query: IntArray  # (T,) ascending, the query of each group, counted from the block's first
    size: IntArray  # (T,) items of the group
    relevant: IntArray  # (T,) relevant items of the group, at least 1
    size_before: IntArray  # (T,) items of the gallery with a better score
    relevant_before: IntArray  # (T,) relevant items with a better score
    relevant_total: IntArray  # (B,) relevant items of each query in the whole gallery; may be 0
    first_relevant: NDArray[np.bool_]  # (B,) of the first hit, ties in the order of the gallery
    gallery_size: int  # N


@dataclass(frozen=True, slots=True, eq=False)
class LabelledGroups:
    """The G distinct codes and how many rows of each class hold them (the counts, by class)."""

    groups: CodeGroups
    classes: IntArray  # (C,) the labels that occur, ascending
    offsets: IntArray  # (C + 1,); entries offsets[c]:offsets[c+1] belong to classes[c]
    members: IntArray  # (E,) the distinct code of each entry
    counts: IntArray  # (E,) rows of that class with that code
    first_rows: IntArray  # (G,) the earliest row of each distinct code
    first_labels: IntArray  # (G,) the label of that row


def label_groups(codes: CodeArray, labels: IntArray) -> LabelledGroups:
    """Group a gallery, (N, M) uint8 with N labels, by distinct code and count classes in each."""
    groups = group_codes(codes)
    return _count_classes(groups, check_labels("gallery_labels", labels, len(codes)))


def rank_codes(
    tables: FloatArray, query_labels: IntArray, *, gallery: LabelledGroups
) -> Iterator[TieGroups]:
    """Rank a gallery of codes for queries given as lookup tables (Q, M, K).

    Distinct codes are scored and sorted, not rows; a row of the query's label is relevant.
    """
    labels = check_labels("query_labels", query_labels, len(tables))
    step = max(1, _BLOCK_SCORES // len(gallery.groups.sizes))
    for start in range(0, len(labels), step):
        scores = score_codes(tables[start : start + step], gallery.groups.codes)
        yield _rank_block(scores, labels[start : start + step], gallery)


def rank_embeddings(
    queries: FloatArray, query_labels: IntArray, *, gallery: FloatArray, gallery_labels: IntArray
) -> Iterator[TieGroups]:
    """Rank a gallery of (N, D) floats by inner product, without ever holding all scores."""
    rows = check_embeddings("gallery", gallery)
    vectors = check_embeddings("queries", queries, rows.shape[1])
    labels = check_labels("query_labels", query_labels, len(vectors))
    own = check_labels("gallery_labels", gallery_labels, len(rows))
    return rank_rows(lambda part: vectors[part] @ rows.T, labels, gallery_labels=own)


def rank_rows(
    score: Callable[[slice], FloatArray],
    query_labels: IntArray,
    *,
    gallery_labels: IntArray,
    left_out: Callable[[slice], NDArray[np.bool_]] | None = None,
) -> Iterator[TieGroups]:
    """Rank N rows by a function that scores (q, N) float32 some of the queries.

    `left_out` returns (q, N) bool for the same queries: rows that do not count, such as the query
    itself.
    """
    rows = len(gallery_labels)
    groups = CodeGroups(  # one group per row, with dummy codes
        np.zeros((rows, 1), np.uint8), np.arange(rows), np.ones_like(gallery_labels)
    )
    labelled = _count_classes(groups, gallery_labels)
    step = max(1, _BLOCK_SCORES // rows)
    for start in range(0, len(query_labels), step):
        part = slice(start, start + step)
        absent = None if left_out is None else left_out(part)
        yield _rank_block(score(part), query_labels[part], labelled, absent)


def check_labels(name: str, labels: Any, length: int) -> IntArray:
    """Return (length,) int64 labels, or raise a `ShapeError` that names the argument."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) != length:
        raise ShapeError(
            f"{name} has shape {array.shape} and dtype {str(array.dtype)!r}; expected one integer "
            f"per row, shape ({length},). Number the classes from 0."
        )
    return array.astype(np.int64)


def _count_classes(groups: CodeGroups, labels: IntArray) -> LabelledGroups:
    if not len(labels):
        raise ShapeError("The gallery is empty; expected at least one row. Add images to it.")
    classes, class_of_row = np.unique(labels, return_inverse=True)
    pairs, counts = np.unique(
        class_of_row.astype(np.int64) * len(groups.sizes) + groups.group_of_row, return_counts=True
    )
    offsets = np.searchsorted(pairs, np.arange(len(classes) + 1) * len(groups.sizes))
    first_rows = np.unique(groups.group_of_row, return_index=True)[1].astype(np.int64)
    return LabelledGroups(
        groups=groups,
        classes=classes,
        offsets=offsets.astype(np.int64),
        members=pairs % len(groups.sizes),
        counts=counts.astype(np.int64),
        first_rows=first_rows,
        first_labels=labels[first_rows],
    )


def _rank_block(
    scores: FloatArray,
    labels: IntArray,
    gallery: LabelledGroups,
    left_out: NDArray[np.bool_] | None = None,
) -> TieGroups:
    """Sort one block, merge exactly equal scores, keep the groups with a relevant item.

    `left_out` (B, G) is for galleries with a group for each row.
    """
    queries, columns = scores.shape
    counts = _packed_counts(labels, gallery)
    rows = np.full(queries, len(gallery.groups.group_of_row))
    if left_out is not None:
        scores, counts[left_out] = np.where(left_out, np.float32(-np.inf), scores), 0
        rows -= left_out.sum(axis=1)
    descending = np.negative(scores)
    order = descending.argsort(axis=1)
    order += np.arange(queries)[:, None] * columns
    flat = order.ravel()
    values = descending.ravel()[flat]
    starts_group = np.empty(len(flat), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=starts_group[1:])
    starts_group[::columns] = True
    starts = np.flatnonzero(starts_group)
    query = starts // columns
    packed = np.add.reduceat(counts.ravel()[flat], starts)
    size, hits = packed & _SIZE_MASK, packed >> _SIZE_BITS
    total = np.bincount(query, weights=hits, minlength=queries).astype(np.int64)
    size_before = size.cumsum() - size - (rows.cumsum() - rows)[query]
    hits_before = hits.cumsum() - hits - (total.cumsum() - total)[query]
    keep = np.flatnonzero(hits)
    return TieGroups(
        query=query[keep],
        size=size[keep],
        relevant=hits[keep],
        size_before=size_before[keep],
        relevant_before=hits_before[keep],
        relevant_total=total,
        first_relevant=(_first_labels(scores, gallery) == labels) & (rows > 0),
        gallery_size=len(gallery.groups.group_of_row),
    )


def _first_labels(scores: FloatArray, gallery: LabelledGroups) -> IntArray:
    """Return (B,) the label of each query's first hit; of equal scores the earliest row wins."""
    best = scores.max(axis=1, keepdims=True)
    rows = np.where(scores == best, gallery.first_rows, len(gallery.groups.group_of_row))
    labels: IntArray = gallery.first_labels[rows.argmin(axis=1)]
    return labels


def _packed_counts(labels: IntArray, gallery: LabelledGroups) -> IntArray:
    """Return (B, G): rows of each distinct code and, in the high bits, those of the query's label.

    Both counts are sorted as one number, which halves the memory traffic.
    """
    packed = np.tile(gallery.groups.sizes, (len(labels), 1))
    position = np.searchsorted(gallery.classes, labels)
    position[position == len(gallery.classes)] = 0
    known = np.flatnonzero(gallery.classes[position] == labels)
    first = gallery.offsets[position[known]]
    lengths = gallery.offsets[position[known] + 1] - first
    # Entry numbers of all known queries in one array: a range for each, concatenated.
    ends = lengths.cumsum()
    entries = np.arange(int(lengths.sum())) + np.repeat(first - (ends - lengths), lengths)
    packed[np.repeat(known, lengths), gallery.members[entries]] += (
        gallery.counts[entries] << _SIZE_BITS
    )
    return packed
