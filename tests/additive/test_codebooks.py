"""Sums of codewords: codes, scores and classes against plain loops; saved and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from made_up_kinds import KINDS, made_up
from phpq.additive import AdditiveCodebooks, fit_additive, softmax
from phpq.additive.codebooks import SIZE
from phpq.codes import FloatArray, score_codes
from phpq.errors import FormatError, ShapeError


def fitted(**options: Any) -> tuple[AdditiveCodebooks, FloatArray, list[str]]:
    rows, labels = made_up()
    return fit_additive(rows, labels, **{"num_codebooks": 3, "dims": 16, **options}), rows, labels


def test_the_code_of_a_row_does_not_depend_on_the_others() -> None:
    books, rows, labels = fitted()
    together = books.encode(rows, labels)
    alone = [books.encode(rows[n : n + 1], labels[n : n + 1])[0] for n in range(len(rows))]
    assert np.array_equal(together, alone)


def test_a_score_is_the_inner_product_with_what_the_code_stands_for() -> None:
    books, rows, labels = fitted()
    codes = books.encode(rows, labels)
    scores = score_codes(books.lookup_tables(rows), codes)
    for query, row in ((0, 0), (0, 30), (17, 45)):
        stands_for = sum(books.codewords[m, codes[row, m]] for m in range(3))
        expected = float(books.vectors(rows[query : query + 1])[0] @ stands_for)
        assert scores[query, row] == pytest.approx(expected, abs=1e-5)


def plain_prototypes(
    own: FloatArray, labels: Sequence[str], names: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """Means of classes, longer where a class is wide, by loops; and how near rows are to others."""
    near = np.zeros(len(own))
    means = {}
    for name in names:
        inside = [n for n, label in enumerate(labels) if label == name]
        total = own[inside].sum(axis=0)
        means[name] = total / np.linalg.norm(total)
        for row in inside:
            others = total - own[row]
            near[row] = own[row] @ others / np.linalg.norm(others)
    typical = near.mean()
    for name in names:
        inside = [n for n, label in enumerate(labels) if label == name]
        width = (near[inside].sum() + 2 * typical) / (len(inside) + 2)
        means[name] = means[name] * np.sqrt(typical / width)
    return near, means


def test_labelled_rows_stand_between_their_class_and_themselves() -> None:
    books, rows, labels = fitted(trust=0.6, num_codebooks=8)
    own = books.vectors(rows)
    codes = books.encode(rows, labels)
    near, means = plain_prototypes(own, labels, KINDS)
    assert books.typical == pytest.approx(near.mean(), abs=1e-4)
    for row, label in enumerate(labels):
        scores = {name: float(own[row] @ mean) for name, mean in means.items()}
        share = 0.6 * (1 - (max(scores.values()) - scores[label]))
        target = share * means[label] + (1 - share) * own[row]
        stands_for = sum(books.codewords[m, codes[row, m]] for m in range(8))
        assert np.linalg.norm(target - stands_for) < 0.05


def test_labels_bring_a_class_together_and_leave_each_image_its_own_look() -> None:
    books, rows, labels = fitted(num_codebooks=8)
    codes = books.encode(rows, labels)
    same = np.array(labels)[:, None] == np.array(labels)[None, :]
    with_labels = score_codes(books.lookup_tables(rows), codes)
    without = fit_additive(rows, [None] * len(rows), num_codebooks=8, dims=16)
    plain = score_codes(without.lookup_tables(rows), without.encode(rows))
    gap = [s[same].min() - s[~same].max() for s in (with_labels, plain)]
    assert gap[0] > gap[1]
    assert (with_labels.argmax(axis=1) == np.arange(len(rows))).mean() > 0.9


def test_a_row_without_a_known_label_is_encoded_as_its_own_vector() -> None:
    books, rows, _ = fitted()
    plain = books.encode(rows)
    assert np.array_equal(plain, books.encode(rows, [None] * len(rows)))
    assert np.array_equal(plain, books.encode(rows, ["no such kind"] * len(rows)))
    with pytest.raises(ShapeError, match="one per row"):
        books.encode(rows, ["owl"])


def test_a_label_that_the_look_contradicts_does_not_bury_its_image() -> None:
    rows, labels = made_up(per_kind=40)
    wrong = list(labels)
    for row in range(0, len(rows), 10):
        wrong[row] = KINDS[(KINDS.index(labels[row]) + 1) % 4]
    books = fit_additive(rows, wrong, num_codebooks=8, dims=16, trust=0.9)
    codes = books.encode(rows, wrong)
    found = score_codes(books.lookup_tables(rows), codes).argmax(axis=1)
    assert (found[::10] == np.arange(0, len(rows), 10)).mean() > 0.7  # none if they were trusted
    back = books.vectors(books.decode_without_class(codes, wrong))
    assert (back * books.vectors(rows)).sum(axis=1)[::10].mean() > 0.9


def test_labels_that_look_wrong_do_not_move_the_prototypes() -> None:
    rows, labels = made_up(per_kind=40)
    wrong = list(labels)
    for row in range(0, len(rows), 10):
        wrong[row] = KINDS[(KINDS.index(labels[row]) + 1) % 4]
    books = fit_additive(rows, wrong, num_codebooks=3, dims=16)
    own, right = books.vectors(rows), [n for n in range(len(rows)) if n % 10]
    _, means = plain_prototypes(own[right], [labels[n] for n in right], books.class_names)
    expected = own @ np.stack([means[name] for name in books.class_names]).T
    assert np.abs(books.class_scores(rows) - expected).max() < 0.02


def test_kinds_are_scored_by_their_prototypes() -> None:
    books, rows, labels = fitted()
    own = books.vectors(rows)
    numbers = np.array([books.class_names.index(name) for name in labels])
    _, means = plain_prototypes(own, labels, books.class_names)
    expected = own @ np.stack([means[name] for name in books.class_names]).T
    assert np.allclose(books.class_scores(rows), expected, atol=1e-4)
    likely = softmax(books.sharpness * books.class_scores(rows))
    assert np.allclose(likely.sum(axis=1), 1, atol=1e-5)
    assert (likely.argmax(axis=1) == numbers).mean() > 0.95


def test_decoded_codes_are_queries_like_the_rows_themselves() -> None:
    books, rows, labels = fitted(num_codebooks=8)
    codes = books.encode(rows, labels)
    found = score_codes(books.lookup_tables(books.decode(codes)), codes).argmax(axis=1)
    assert (np.array(labels)[found] == np.array(labels)).all()
    back = books.decode_without_class(codes, labels)
    assert (books.vectors(back) * books.vectors(rows)).sum(axis=1).mean() > 0.9


def test_new_classes_take_spare_codewords_and_old_codes_stay_valid() -> None:
    books, rows, labels = fitted()
    codes = books.encode(rows, labels)
    more, _ = made_up(kinds=1, seed=5)
    grown = books.with_classes(more, ["magpie"] * len(more))
    assert grown.class_names == (*books.class_names, "magpie")
    assert grown.spare == (books.spare[0] - 1, *books.spare[1:])
    assert np.array_equal(grown.encode(rows, labels), codes)
    used = SIZE - books.spare[0]
    assert np.array_equal(grown.codewords[0, :used], books.codewords[0, :used])
    assert (grown.class_scores(more).argmax(axis=1) == 4).all()
    assert grown.with_classes(rows, labels) is grown


def test_classes_beyond_the_spare_codewords_share_codes_and_are_counted() -> None:
    books, rows, labels = fitted()
    more, names = made_up(kinds=SIZE, per_kind=1, seed=5)
    grown = books.with_classes(more, names)
    assert (grown.spare[0], len(grown.class_names)) == (0, SIZE + 4)
    assert (books.colliding_classes, grown.colliding_classes) == (0, 4)
    assert np.array_equal(grown.encode(rows, labels), books.encode(rows, labels))
    for number in range(SIZE - 4):  # these have codewords of their own
        assert grown.class_scores(more[number : number + 1]).argmax() == 4 + number


def test_renaming_keeps_codes_and_merging_leaves_one_class() -> None:
    books, rows, labels = fitted()
    renamed = books.renamed({"owl": "eagle owl"})
    assert set(renamed.class_names) == {"finch", "heron", "eagle owl", "wren"}
    again = [name.replace("owl", "eagle owl") for name in labels]
    assert np.array_equal(renamed.encode(rows, again), books.encode(rows, labels))
    merged = books.renamed({"owl": "wren"})
    assert sorted(merged.class_names) == ["finch", "heron", "wren"]
    wren = merged.class_codes[merged.class_names.index("wren")]
    assert np.array_equal(wren, books.class_codes[books.class_names.index("wren")])
    swapped = books.renamed({"owl": "wren", "wren": "owl"})
    assert sorted(swapped.class_names) == sorted(KINDS)


def test_what_is_saved_is_what_is_read() -> None:
    books, rows, labels = fitted()
    read = AdditiveCodebooks.from_bytes(books.to_bytes())
    assert read.to_bytes() == books.to_bytes()
    assert read.fingerprint() == books.fingerprint()
    assert read.class_names == books.class_names
    assert np.array_equal(read.encode(rows, labels), books.encode(rows, labels))
    assert replace(books, trust=0.5).fingerprint() != books.fingerprint()
    for damaged in (b"", b"not a file at all", books.to_bytes()[:-100]):
        with pytest.raises(FormatError, match="gallery refit"):
            AdditiveCodebooks.from_bytes(damaged)


def test_shares_sum_to_one_and_large_scores_do_not_overflow() -> None:
    assert np.allclose(softmax(np.array([[1000.0, 0.0], [0.0, 0.0]])), [[1.0, 0.0], [0.5, 0.5]])
    assert softmax(np.empty((2, 0))).shape == (2, 0)
