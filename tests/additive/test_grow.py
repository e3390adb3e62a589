"""Codebooks that grow: rows of other kinds are found, and codes made before stay valid."""

from __future__ import annotations

import numpy as np
import pytest

from made_up_kinds import made_up
from phpq.additive import AdditiveCodebooks, fit_additive, grow_additive, unit_rows
from phpq.additive.codebooks import SIZE
from phpq.codes import FloatArray, score_codes

Kinds = tuple[FloatArray, list[str]]


def old_and_new(per_kind: int = 40) -> tuple[Kinds, Kinds]:
    """Rows of 20 kinds that codebooks are fitted to, and of 20 others that come."""
    rows, labels = made_up(kinds=40, per_kind=per_kind, dim=48)
    half = len(rows) // 2
    return (rows[:half], labels[:half]), (rows[half:], labels[half:])


def right_first(
    books: AdditiveCodebooks, codes: list[np.ndarray], parts: tuple[Kinds, Kinds]
) -> float:
    """Share of the new rows that find one of their kind first, among all but themselves."""
    names = np.array([*parts[0][1], *parts[1][1]])
    scores = score_codes(books.lookup_tables(parts[1][0]), np.concatenate(codes))
    asking = len(codes[0]) + np.arange(len(codes[1]))
    scores[np.arange(len(asking)), asking] = -np.inf
    return float((names[scores.argmax(axis=1)] == names[asking]).mean())


def test_other_kinds_are_found_and_codes_made_before_mean_the_same() -> None:
    parts = old_and_new()
    (rows, labels), (more, names) = parts
    books = fit_additive(rows, labels, num_codebooks=4, dims=24)
    codes = books.encode(rows, labels)
    grown = grow_additive(books, more, names)
    dims = books.sub_dim
    assert grown.sub_dim > dims
    assert np.array_equal(grown.projection[:, :dims], books.projection)
    for book, spare in enumerate(books.spare):
        used = grown.codewords[book, : SIZE - spare]
        assert np.array_equal(used[:, :dims], books.codewords[book, : SIZE - spare])
        assert not used[:, dims:].any()
    assert set(grown.class_names) == set(labels) | set(names)
    old = books.with_classes(more, names)
    assert grown.distortion(more, names) < 0.5 * old.distortion(more, names)
    assert right_first(grown, [codes, grown.encode(more, names)], parts) == 1


def test_directions_are_those_in_which_rows_leave_the_projection() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=2, dims=24)
    grown = grow_additive(books, more, names)
    added = grown.projection[:, 24:].astype(np.float64)
    assert added.shape[1] == round(24 / 4 * 4 / 5)  # as many rows came as were fitted
    known = np.linalg.qr(books.projection.astype(np.float64))[0]
    assert np.abs(known.T @ added).max() < 1e-4
    length = np.square(books.projection, dtype=np.float64).sum(axis=0).mean()
    assert np.allclose(added.T @ added, length * np.eye(added.shape[1]), atol=1e-3 * length)
    outside = unit_rows(more - books.mean).astype(np.float64)
    outside -= outside @ known @ known.T
    best = np.square(np.linalg.svd(outside)[1][: added.shape[1]]).sum()
    assert np.square(outside @ added).sum() / length == pytest.approx(best, rel=1e-3)


def test_a_projection_that_keeps_all_directions_gets_none() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=3, dims=48)
    assert grow_additive(books, more, names).sub_dim == 48


def test_codewords_are_shared_out_by_rows_however_they_come() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=2)
    at_once = grow_additive(books, more, names)
    in_parts = books
    for part in np.array_split(np.arange(len(more)), 4):
        in_parts = grow_additive(in_parts, more[part], [names[row] for row in part])
    assert [each.spare[1] for each in (books, at_once)] == [96, 19]
    assert 0 < in_parts.spare[1] < 19
    assert in_parts.fitted_rows == at_once.fitted_rows == len(rows) + len(more)


def test_few_rows_and_rows_that_are_served_take_nothing() -> None:
    (rows, labels), (more, _) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=3)
    assert grow_additive(books, rows, labels) is books
    one = grow_additive(books, more[:99], ["magpie"] * 99)  # its class, but no codewords
    assert one.class_names == (*books.class_names, "magpie")
    assert (one.spare[1:], one.sub_dim) == (books.spare[1:], books.sub_dim)


def test_codebooks_without_labels_keep_nothing_back() -> None:
    (rows, _), (more, _) = old_and_new()
    books = fit_additive(rows, [None] * len(rows), num_codebooks=3)
    assert books.spare == (0, 0, 0)
    assert grow_additive(books, more, [None] * len(more)) is books


def test_codebooks_that_hold_only_classes_get_only_classes() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=1)
    grown = grow_additive(books, more, names)
    assert (len(grown.class_names), grown.sub_dim) == (40, books.sub_dim)
