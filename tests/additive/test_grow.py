"""Codebooks that grow: rows of other kinds are found, and codes made before stay valid."""

from __future__ import annotations

import numpy as np
import pytest

from made_up_kinds import made_up
from phpq.additive import AdditiveCodebooks, fit_additive, grow_additive
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


@pytest.mark.parametrize("trust", [0.0, 0.9])
def test_other_kinds_are_found_and_codes_made_before_mean_the_same(trust: float) -> None:
    parts = old_and_new()
    (rows, labels), (more, names) = parts
    books = fit_additive(rows, labels, num_codebooks=4, trust=trust, dims=24)
    codes = books.encode(rows, labels)
    grown = grow_additive(books, more, names)
    dims = books.sub_dim
    assert grown.sub_dim > dims
    assert np.array_equal(grown.projection[:, :dims], books.projection)
    for book, spare in enumerate(books.spare):
        used = grown.codewords[book, : SIZE - spare]
        assert np.array_equal(used[:, :dims], books.codewords[book, : SIZE - spare])
        assert not used[:, dims:].any()
    assert set(grown.class_names) == (set(labels) | set(names) if trust else set())
    old = books.with_classes(more, names)
    assert grown.distortion(more, names) < 0.5 * old.distortion(more, names)
    before = right_first(old, [codes, old.encode(more, names)], parts)
    found = right_first(grown, [codes, grown.encode(more, names)], parts)
    assert found == 1 if trust else found > before


def test_directions_are_those_in_which_rows_leave_the_projection() -> None:
    (rows, _), (more, names) = old_and_new()
    books = fit_additive(rows, [None] * len(rows), num_codebooks=2, dims=24)
    grown = grow_additive(books, more, [None] * len(names))
    added = grown.projection[:, 24:]
    assert added.shape[1] == round(24 / 4 * 4 / 5)  # as many rows came as were fitted
    assert np.abs(books.projection.T @ added).max() < 1e-4
    assert np.allclose(added.T @ added, np.eye(added.shape[1]), atol=1e-4)
    outside = more - books.mean
    outside -= outside @ books.projection @ books.projection.T
    taken = np.square(outside @ added).sum()
    for start in range(20 - added.shape[1]):  # no others take more
        others = np.linalg.svd(outside)[2][start : start + added.shape[1]]
        assert np.square(outside @ others.T).sum() <= taken * 1.05


def test_a_projection_that_keeps_all_directions_gets_none() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=3, dims=48)
    assert grow_additive(books, more, names).sub_dim == 48


def test_codewords_are_shared_out_by_rows_however_they_come() -> None:
    (rows, _), (more, _) = old_and_new(80)
    books = fit_additive(rows, [None] * len(rows), num_codebooks=2)
    none = [None] * len(more)
    at_once = grow_additive(books, more, none)
    in_parts = books
    for part in np.array_split(np.random.default_rng(0).permutation(len(more)), 4):
        in_parts = grow_additive(in_parts, more[part], none[: len(part)])
    assert books.spare == (96, 96)
    assert at_once.spare == (19, 19)
    assert 0 < in_parts.spare[0] < 19
    assert in_parts.fitted_rows == at_once.fitted_rows == len(rows) + len(more)


def test_few_rows_and_rows_that_are_served_take_nothing() -> None:
    (rows, labels), (more, _) = old_and_new()
    books = fit_additive(rows, [None] * len(rows), num_codebooks=3)
    assert grow_additive(books, more[:99], [None] * 99) is books
    assert grow_additive(books, rows, labels) is books
    known = fit_additive(rows, labels, num_codebooks=3)
    one = grow_additive(known, more[:5], ["magpie"] * 5)  # its class, but no codewords
    assert (one.class_names[-1], one.spare[1:], one.sub_dim) == (
        "magpie",
        known.spare[1:],
        known.sub_dim,
    )


def test_codebooks_that_hold_only_classes_get_only_classes() -> None:
    (rows, labels), (more, names) = old_and_new()
    books = fit_additive(rows, labels, num_codebooks=1)
    grown = grow_additive(books, more, names)
    assert (len(grown.class_names), grown.sub_dim) == (40, books.sub_dim)
