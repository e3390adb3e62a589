"""Codebooks fitted to a gallery: what they are fitted to, few and many classes, few rows."""

from __future__ import annotations

import numpy as np
import pytest

from made_up_kinds import made_up
from phpq.additive.codebooks import SIZE
from phpq.additive.fit import _least_squares, fit_additive, k_means
from phpq.codes import score_codes
from phpq.errors import ConfigError


def test_every_point_has_its_centre_when_there_are_few() -> None:
    points = np.eye(3, dtype=np.float32)
    centres = k_means(points, 4, np.random.default_rng(0))
    assert np.array_equal(centres, [*points, [0, 0, 0]])


def test_centres_are_means_of_the_points_that_are_nearest_to_them() -> None:
    rng = np.random.default_rng(0)
    groups = 20 * np.eye(6, dtype=np.float32)
    points = (groups[np.arange(300) % 6] + 0.1 * rng.normal(size=(300, 6))).astype(np.float32)
    centres = k_means(points, 12, np.random.default_rng(1))
    distances = np.linalg.norm(points[:, None] - centres[None], axis=2)
    nearest = distances.argmin(axis=1)
    for centre in np.unique(nearest):
        assert np.allclose(centres[centre], points[nearest == centre].mean(axis=0), atol=0.05)
    assert distances.min(axis=1).max() < 1


def test_more_books_stand_nearer_to_the_rows() -> None:
    rows, _ = made_up(kinds=40, per_kind=20)
    nobody = [None] * len(rows)
    errors = [
        fit_additive(rows, nobody, num_codebooks=books).fitted_distortion for books in (1, 2, 4)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_fitting_codewords_together_beats_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, _ = made_up(kinds=60, per_kind=30)
    together = fit_additive(rows, [None] * len(rows), num_codebooks=3).fitted_distortion
    monkeypatch.setattr("phpq.additive.fit._ROUNDS", 0)
    alone = fit_additive(rows, [None] * len(rows), num_codebooks=3).fitted_distortion
    assert together < 0.97 * alone


def test_codewords_are_solved_for_while_those_before_them_stay() -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(2, 5, 3)).astype(np.float32)
    targets = rng.normal(size=(40, 3)).astype(np.float32)
    codes = rng.integers(0, 4, (40, 2)).astype(np.uint8)  # nothing takes the last codeword
    begins = (3, 1)
    found = _least_squares(targets, codes, words, begins)
    places = [(book, word) for book in (0, 1) for word in range(begins[book], 5)]
    matrix, rest = np.zeros((40 + len(places), len(places))), np.zeros((40 + len(places), 3))
    for row in range(40):
        rest[row] = targets[row]
        for book in (0, 1):
            if (book, codes[row, book]) in places:
                matrix[row, places.index((book, codes[row, book]))] = 1
            else:
                rest[row] -= words[book, codes[row, book]]
    for number, place in enumerate(places):  # each is drawn to where it was as by one more row
        matrix[40 + number, number] = 1
        rest[40 + number] = words[place]
    expected = words.copy()
    for place, solved in zip(places, np.linalg.lstsq(matrix, rest)[0], strict=True):
        expected[place] = solved
    assert np.allclose(found, expected, atol=1e-5)


def test_as_many_codewords_as_rows_stay_as_short_as_the_rows() -> None:
    rows, _ = made_up(kinds=64, per_kind=8)
    books = fit_additive(rows, [None] * len(rows), num_codebooks=2)
    assert np.linalg.norm(books.codewords, axis=2).max() < 2
    assert books.fitted_distortion < 0.2


def test_the_distortion_at_fitting_is_that_of_the_rows_and_grows_with_new_kinds() -> None:
    rows, labels = made_up(kinds=30, per_kind=20)
    books = fit_additive(rows, labels, num_codebooks=4)
    assert books.fitted_rows == 600
    assert books.distortion(rows, labels) == pytest.approx(books.fitted_distortion, rel=1e-3)
    others, _ = made_up(kinds=30, per_kind=20, seed=9)
    assert books.distortion(others) > 1.5 * books.fitted_distortion


def test_directions_that_vary_inside_classes_count_less() -> None:
    """Two kinds differ in one direction; another, much larger, says nothing about them."""
    rng = np.random.default_rng(0)
    numbers = np.arange(400) % 2
    rows = np.zeros((400, 8), np.float32)
    rows[:, 0] = numbers - 0.5
    rows[:, 1] = 20 * rng.normal(size=400)
    rows += 0.1 * rng.normal(size=rows.shape).astype(np.float32)
    labels = [("left", "right")[n] for n in numbers]
    apart = []
    for given in (labels, [None] * 400):
        own = fit_additive(rows, given, num_codebooks=1).vectors(rows)
        means = [own[numbers == n].mean(axis=0) for n in (0, 1)]
        inside = np.mean([own[numbers == n].var(axis=0).sum() for n in (0, 1)])
        apart.append(np.square(means[0] - means[1]).sum() / inside)
    assert apart[0] > 2 * apart[1]


@pytest.mark.parametrize("kinds", [1, 3, 224, 225, 300])
def test_any_number_of_classes_each_with_a_code_of_its_own(kinds: int) -> None:
    rows, labels = made_up(kinds=kinds, per_kind=2)
    books = fit_additive(rows, labels, num_codebooks=4)
    assert len(books.class_names) == kinds == len({tuple(c) for c in books.class_codes.tolist()})
    assert books.class_books == (1 if kinds <= 224 else 2)
    assert books.spare == ((SIZE - kinds, 96, 96, 96) if kinds <= 224 else (0, 0, 96, 96))
    # Codewords are fitted to rows as they are encoded, also where codes only come near prototypes.
    assert books.distortion(rows, labels) == pytest.approx(books.fitted_distortion, rel=1e-3)
    codes = books.encode(rows, labels)
    numbers = [books.class_names.index(name) for name in labels]
    assert np.array_equal(codes[:, : books.class_books], books.class_codes[numbers])


@pytest.mark.rare
def test_more_classes_than_two_bytes_tell_apart_have_three() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(33_000, 4)).astype(np.float32)
    books = fit_additive(rows, [f"kind {n}" for n in range(len(rows))], num_codebooks=4, dims=4)
    assert books.class_books == 3
    assert len({tuple(code) for code in books.class_codes.tolist()}) > 32_000


def test_rows_without_label_have_codewords_of_their_own_beside_the_classes() -> None:
    rows, labels = made_up(per_kind=100)
    half = [name if n % 2 else None for n, name in enumerate(labels)]
    books = fit_additive(rows, half, num_codebooks=4)
    codes = books.encode(rows, half)
    assert books.spare == (32, 48, 48, 48)
    kinds = np.array(labels)
    scores = score_codes(books.lookup_tables(rows), codes)
    np.fill_diagonal(scores, -np.inf)
    top = np.argsort(-scores, axis=1)[:, :20]
    right = kinds[top] == kinds[:, None]
    unlabelled = (np.array(half) == None)[top]  # noqa: E711  an array
    assert right.mean() > 0.9
    assert 0.1 < (right & unlabelled).sum() / right.sum() < 0.9


def test_labels_are_not_used_without_trust() -> None:
    rows, labels = made_up()
    blind = fit_additive(rows, labels, num_codebooks=2, trust=0.0)
    assert blind.class_names == ()
    assert blind.to_bytes() == fit_additive(rows, [None] * len(rows), num_codebooks=2).to_bytes()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_are_enough(rows: int) -> None:
    some, labels = made_up(per_kind=5)
    books = fit_additive(some[:rows], labels[:rows], num_codebooks=2)
    found = score_codes(books.lookup_tables(some[:rows]), books.encode(some[:rows], labels[:rows]))
    assert np.isfinite(found).all()


def test_the_same_seed_gives_the_same_codebooks() -> None:
    rows, labels = made_up()
    one, two = (fit_additive(rows, labels, num_codebooks=2, seed=3) for _ in range(2))
    assert one.fingerprint() == two.fingerprint()


def test_what_cannot_be_fitted_is_refused() -> None:
    rows, labels = made_up()
    with pytest.raises(ConfigError, match="at least one row"):
        fit_additive(rows[:0], [])
    with pytest.raises(ConfigError, match="48 embeddings and 1 labels"):
        fit_additive(rows, ["owl"])
    with pytest.raises(ConfigError, match=r"trust=1\.5"):
        fit_additive(rows, labels, trust=1.5)
