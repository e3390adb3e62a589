"""Probabilities that are fitted must come true, for photos that nothing was fitted to."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from phpq.additive import (
    AdditiveCodebooks,
    CodeClassifier,
    calibrate_additive,
    calibrate_codes,
    fit_additive,
    number_labels,
    softmax,
    unit_rows,
)
from phpq.additive.calibrate import _mixed
from phpq.additive.probabilities import ERROR_RATES, parent_levels
from phpq.codes import Codebooks, FloatArray, normalise_sub_vectors
from phpq.errors import FormatError

Bools = NDArray[np.bool_]
DIM = 24
KINDS = [number for number in range(32) if number % 4 != 3]  # three of each family of four
ABSENT = list(range(3, 32, 4))


def draw(kinds: list[int], count: int, seed: int) -> tuple[FloatArray, list[str]]:
    """Rows around the centres of kinds, four and four of which are near each other."""
    families = np.random.default_rng(5).normal(size=(8, DIM))
    centres = families[np.arange(32) // 4] + 0.7 * np.random.default_rng(6).normal(size=(32, DIM))
    generator = np.random.default_rng(seed)
    numbers = np.repeat(np.array(kinds, np.int64), count)
    rows = centres[numbers] + 1.1 * generator.normal(size=(len(numbers), DIM))
    return unit_rows(rows.astype(np.float32)), [f"kind {number:03}" for number in numbers]


@pytest.fixture(scope="module")
def books() -> AdditiveCodebooks:
    rows, labels = draw(KINDS, 20, seed=0)
    return calibrate_additive(fit_additive(rows, labels, num_codebooks=2), rows, labels)


@pytest.fixture(scope="module")
def coded() -> CodeClassifier:
    """Return kinds by codes of 12 codebooks, whose words are parts of some of the rows."""
    rows, labels = draw(KINDS, 20, seed=0)
    parts = normalise_sub_vectors(rows, 12).reshape(len(rows), 12, 2)
    chosen = np.random.default_rng(1).permutation(len(rows))[:64]
    books = Codebooks(np.ascontiguousarray(parts[chosen].transpose(1, 0, 2)))
    names = tuple(sorted(set(labels)))
    return CodeClassifier.from_codes(books, books.encode(rows), number_labels(labels, names), names)


def predicted(
    books: AdditiveCodebooks | CodeClassifier,
) -> tuple[NDArray[np.float64], Bools, Bools]:
    """Return the probability of the best class, whether it is right, and whether it is known."""
    known_rows, known_labels = draw(KINDS, 20, seed=7)
    absent_rows, absent_labels = draw(ABSENT, 60, seed=8)  # as many
    rows, labels = np.concatenate([known_rows, absent_rows]), known_labels + absent_labels
    scores = books.class_scores(rows)
    assert books.probabilities is not None
    known = books.probabilities.known(scores, books.sharpness)
    best = known * softmax(books.sharpness * scores).max(axis=1)
    names = [books.class_names[place] for place in scores.argmax(axis=1)]
    right = np.array([name == label for name, label in zip(names, labels, strict=True)])
    return best, right, np.arange(len(rows)) < len(known_rows)


def test_probabilities_are_calibrated(books: AdditiveCodebooks) -> None:
    best, right, known = predicted(books)
    assert best.mean() == pytest.approx(right.mean(), abs=0.06)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        mine = (best >= low) & (best < high)
        assert mine.sum() > 50
        assert best[mine].mean() == pytest.approx(right[mine].mean(), abs=0.15)
    assert best[known].mean() > 2 * best[~known].mean()


def test_cut_offs_keep_wrong_names_few(books: AdditiveCodebooks) -> None:
    best, right, _ = predicted(books)
    assert books.probabilities is not None
    answered = 0.0
    for rate in (0.05, 0.1, 0.3):
        named = best >= books.probabilities.cut_off(0, rate)
        assert (~right[named]).mean() <= rate + 0.06
        assert named.mean() >= answered  # the more may be wrong, the more are named
        answered = named.mean()
    assert answered > 0.3


def test_held_out_photos_replace_the_rows(books: AdditiveCodebooks) -> None:
    rows, labels = draw(KINDS, 20, seed=0)
    photos = draw([*KINDS, *ABSENT], 10, seed=3)
    again = calibrate_additive(books, rows, labels, photos)
    assert again.probabilities is not None
    assert again.probabilities.held_out
    assert again.probabilities.images == 10 * len(KINDS)
    best, right, _ = predicted(again)
    assert best.mean() == pytest.approx(right.mean(), abs=0.06)


def test_parents_answer_what_kinds_cannot(books: AdditiveCodebooks) -> None:
    rows, labels = draw(KINDS, 20, seed=0)
    parents = {f"kind {number:03}": f"family {number // 4}" for number in KINDS}
    wide = calibrate_additive(replace(books, parents=parents), rows, labels)
    assert wide.probabilities is not None
    assert len(wide.probabilities.cut_offs) == 2
    place = ERROR_RATES.index(0.1)
    assert wide.probabilities.answered[place] > wide.probabilities.named[place] + 0.05


@pytest.mark.parametrize("by_photos", [False, True])
def test_an_unknown_photo_may_have_no_relatives(by_photos: bool) -> None:
    """Of families that the gallery lacks, few photos get the name of another family."""
    held, absent = [n for n in KINDS if n < 24], [n for n in range(32) if n >= 24]
    rows, labels = draw(held, 20, seed=0)
    photos = draw(held, 20, seed=3) if by_photos else None
    parents = {f"kind {number:03}": f"family {number // 4}" for number in held}
    books = replace(fit_additive(rows, labels, num_codebooks=2), parents=parents)
    fitted = calibrate_additive(books, rows, labels, photos)
    assert fitted.probabilities is not None
    known, unknown = draw(held, 20, seed=7), draw(absent, 45, seed=8)  # as many
    scores = fitted.class_scores(np.concatenate([known[0], unknown[0]]))
    p_known = fitted.probabilities.known(scores, fitted.sharpness)
    (level,) = parent_levels(fitted.class_names, parents)
    share, numbers = level.best_parent(softmax(fitted.sharpness * scores))
    answered = fitted.probabilities.parent(1, p_known, share) >= fitted.probabilities.cut_off(
        1, 0.1
    )
    truth = [f"family {int(name.split()[1]) // 4}" for name in known[1] + unknown[1]]
    right = np.array([level.names[n] == name for n, name in zip(numbers, truth, strict=True)])
    assert answered[: len(known[0])].mean() > 0.2
    assert (~right[answered]).mean() <= 0.1 + 0.06


def test_unknown_photos_of_all_groupings_weigh_the_same() -> None:
    few, many = np.zeros((2, 3), np.float32), np.ones((6, 3), np.float32)
    mixed = _mixed(
        [
            [(few, np.zeros(2, np.int64))],
            [],
            [(many[:4], np.zeros(4, np.int64)), (many[4:], np.zeros(2, np.int64))],
        ],
        3,
    )
    assert mixed.weights.tolist() == pytest.approx([1 / 4] * 2 + [1 / 12] * 6)
    assert len(_mixed([[], []], 3).scores) == 0


@pytest.mark.parametrize(("kinds", "count"), [(4, 40), (20, 1), (6, 10), (0, 0)])
def test_too_few_images_give_no_probabilities(kinds: int, count: int) -> None:
    rows, labels = draw(list(range(kinds)), count, seed=0)
    plain, _ = draw([0], 30, seed=1)
    rows = np.concatenate([rows, plain]) if kinds else plain
    given = [*labels, *([None] * len(plain))]
    books = fit_additive(rows, given, num_codebooks=2)
    assert calibrate_additive(books, rows, given).probabilities is None


def test_the_file_holds_the_calibration(books: AdditiveCodebooks) -> None:
    with_parents = replace(books, parents={"kind 000": "first"})
    read = AdditiveCodebooks.from_bytes(with_parents.to_bytes())
    assert (read.probabilities, read.parents) == (books.probabilities, {"kind 000": "first"})


def changed(content: bytes, change: dict[str, object]) -> bytes:
    """Return a file of codebooks with other facts."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["facts"])
    facts = {name: value for name, value in (facts | change).items() if value != "gone"}
    header["__metadata__"]["facts"] = json.dumps(facts)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_older_files_open_without_probabilities(books: AdditiveCodebooks) -> None:
    old = changed(books.to_bytes(), {"chances": "gone", "parents": "gone"})
    read = AdditiveCodebooks.from_bytes(old)
    assert (read.probabilities, read.parents) == (None, {})
    assert read.class_names == books.class_names


def test_damaged_probabilities_are_named(books: AdditiveCodebooks) -> None:
    with pytest.raises(FormatError, match="damaged"):
        AdditiveCodebooks.from_bytes(changed(books.to_bytes(), {"chances": {"weights": [1]}}))
    with pytest.raises(FormatError, match="damaged"):
        AdditiveCodebooks.from_bytes(changed(books.to_bytes(), {"chances": [1]}))


def test_probabilities_of_codes_are_calibrated_with_unknown_photos(coded: CodeClassifier) -> None:
    known, unknown = draw(KINDS, 20, seed=3), draw(ABSENT, 40, seed=4)
    photos = np.concatenate([known[0], unknown[0]]), known[1] + unknown[1]
    classifier = calibrate_codes(coded, photos)
    assert classifier.probabilities is not None
    assert (classifier.probabilities.images, classifier.probabilities.held_out) == (
        len(known[1]),
        True,
    )
    best, right, _ = predicted(classifier)
    assert best.mean() == pytest.approx(right.mean(), abs=0.06)
    for rate in (0.2, 0.4):
        named = best >= classifier.probabilities.cut_off(0, rate)
        assert named.any()
        assert 1 - right[named].mean() <= rate + 0.1


def test_without_unknown_photos_classes_are_left_out(coded: CodeClassifier) -> None:
    photos = draw(KINDS, 20, seed=3)
    classifier = calibrate_codes(coded, photos)
    assert classifier.probabilities is not None
    # A mean that lacks the own class is lower for that alone: it must not count.
    assert classifier.probabilities.weights[2] == 0
    best, _, known = predicted(classifier)
    assert best[known].mean() > 1.5 * best[~known].mean()
    few = draw(ABSENT, 1, seed=4)
    mixed = calibrate_codes(coded, (np.concatenate([photos[0], few[0]]), photos[1] + few[1]))
    assert mixed.probabilities is not None
    assert mixed.probabilities.weights[2] == 0


def test_parents_of_codes_are_fitted_too(coded: CodeClassifier) -> None:
    parents = {name: f"family {int(name.split()[1]) // 4}" for name in coded.class_names}
    classifier = calibrate_codes(replace(coded, parents=parents), draw(KINDS, 20, seed=3))
    assert classifier.probabilities is not None
    assert (
        len(classifier.probabilities.parent_weights),
        len(classifier.probabilities.cut_offs),
    ) == (1, 2)


def test_one_parent_of_all_kinds_tells_nothing_of_the_unknown(
    books: AdditiveCodebooks, coded: CodeClassifier
) -> None:
    """Without it no kind would be left to compare with; the fit must not see such queries."""
    parents = dict.fromkeys(coded.class_names, "bird")
    photos, rows = draw(KINDS, 20, seed=3), draw(KINDS, 20, seed=0)
    codes, plain = (calibrate_codes(replace(coded, parents=p), photos) for p in (parents, {}))
    assert codes.probabilities is not None
    assert plain.probabilities is not None
    assert codes.probabilities.weights == plain.probabilities.weights
    own = calibrate_additive(replace(books, parents=parents), *rows)
    assert own.probabilities is not None
    assert books.probabilities is not None
    assert own.probabilities.weights == books.probabilities.weights
    for fitted in (codes.probabilities, own.probabilities):
        assert np.isfinite(fitted.parent_weights).all()


def test_probabilities_do_not_depend_on_the_scale_of_scores(coded: CodeClassifier) -> None:
    photos = draw(KINDS, 20, seed=3)
    classifier = calibrate_codes(coded, photos)
    long = calibrate_codes(replace(coded, prototypes=coded.prototypes * 50), photos)
    assert classifier.probabilities is not None
    assert long.probabilities is not None
    assert long.sharpness == pytest.approx(classifier.sharpness / 50, rel=1e-3)
    assert long.probabilities.named == pytest.approx(classifier.probabilities.named, abs=0.02)


@pytest.mark.parametrize(("kinds", "count"), [(KINDS[:4], 40), (KINDS, 4), ([], 0)])
def test_too_few_photos_give_no_probabilities_of_codes(
    coded: CodeClassifier, kinds: list[int], count: int
) -> None:
    assert calibrate_codes(coded, draw(kinds, count, seed=3)).probabilities is None
