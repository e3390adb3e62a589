"""One search against plain loops: what is found, with which labels, in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phpq.additive import AdditiveCodebooks
from phpq.codes import Codebooks, FloatArray, IntArray, normalise_sub_vectors, score_codes
from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes, evaluate_float
from phpq.evaluation.search import (
    PQ_SIZES,
    ClassSplit,
    Names,
    SearchSetup,
    additive_codes,
    best_pq,
    evaluate_pq,
    fitted_to,
    names_of,
    pq_codes,
    search,
    validation_queries,
    with_labels,
)
from reference import average_precision_loop, map_at_r_loop, orders_of_ties, random_codebooks


def made_up(rows: int = 12, *, classes: int = 3, dim: int = 6) -> tuple[FloatArray, IntArray]:
    rng = np.random.default_rng(5)
    labels = np.arange(rows) % classes
    centres = rng.standard_normal((classes, dim))
    images = centres[labels] + 1.2 * rng.standard_normal((rows, dim))
    return images.astype(np.float32), labels


def measured_by_loops(
    scores: FloatArray, labels: IntArray, gallery: IntArray, queries: IntArray
) -> dict[str, float]:
    """Every measure as the mean over all orders of tied rows, a query's own row left out."""
    totals: dict[str, list[float]] = {name: [] for name in ("r1", "r2", "r4", "r8", "map_r", "map")}
    for place, query in enumerate(queries):
        others = [n for n, row in enumerate(gallery) if row != query]
        relevant = [bool(labels[gallery[n]] == labels[query]) for n in others]
        if not any(relevant):
            continue
        orders = orders_of_ties([float(scores[place, n]) for n in others], relevant)
        for k in (1, 2, 4, 8):
            totals[f"r{k}"].append(float(np.mean([any(order[:k]) for order in orders])))
        totals["map_r"].append(float(np.mean([map_at_r_loop(order) for order in orders])))
        totals["map"].append(float(np.mean([average_precision_loop(order) for order in orders])))
    return {name: 100 * float(np.mean(values)) for name, values in totals.items()}


def test_leave_one_out_by_floats_equals_the_loops() -> None:
    images, labels = made_up()
    rows = np.arange(12)
    found = search(SearchSetup("float", images), labels, "unseen", gallery=rows, queries=rows)
    expected = measured_by_loops(images @ images.T, labels, rows, rows)
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)
    assert (found.queries, found.gallery, found.labels) == (12, 12, "without")
    assert (found.bits, found.bytes_per_image) == (6 * 32, 6 * 4)


def test_leave_one_out_by_codes_counts_ties_fairly() -> None:
    images, labels = made_up(8, classes=2)
    books = random_codebooks(np.random.default_rng(1), 2, 2, 3)  # four codes for eight rows
    rows, setup = np.arange(8), SearchSetup("codes", images, lambda *_: books, norm="unit")
    found = search(setup, labels, "unseen", gallery=rows, queries=rows)
    scores = score_codes(books.lookup_tables(images), books.encode(images))
    assert len(np.unique(scores[0])) < 8
    expected = measured_by_loops(scores, labels, rows, rows)
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)
    assert found.bits == 2
    assert found.bytes_per_image == pytest.approx(2 / 8 + 2 * 2 * 3 * 4 / 8)


def test_queries_apart_from_the_gallery() -> None:
    images, labels = made_up()
    gallery, queries = np.array([0, 2, 3, 4, 7, 8]), np.array([1, 5, 6])
    found = search(SearchSetup("float", images), labels, "x", gallery=gallery, queries=queries)
    expected = measured_by_loops(images[queries] @ images[gallery].T, labels, gallery, queries)
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)


def test_a_query_alone_in_its_class_is_left_out_of_the_means() -> None:
    images, labels = made_up()
    labels = np.where(np.arange(12) == 4, 99, labels)
    rows = np.arange(12)
    found = search(SearchSetup("float", images), labels, "unseen", gallery=rows, queries=rows)
    assert found.queries == 11


def test_only_setups_with_labels_see_them() -> None:
    images, labels = made_up()
    seen: list[Any] = []

    def fit(rows: FloatArray, names: Names) -> Codebooks:
        seen.append((len(rows), list(names)))
        return random_codebooks(np.random.default_rng(1), 2, 4, 3)

    gallery, queries = np.array([3, 1, 2]), np.array([0])
    for setup in (SearchSetup("a", images, fit), SearchSetup("b", images, fit, "with")):
        search(setup, labels, "x", gallery=gallery, queries=queries)
    given: Names = [None if row == 1 else f"kind {row}" for row in range(12)]
    search(
        SearchSetup("b", images, fit, "with"),
        labels,
        "x",
        gallery=gallery,
        queries=queries,
        names=given,
    )
    assert seen == [
        (3, [None] * 3),
        (3, [str(labels[row]) for row in gallery]),
        (3, ["kind 3", None, "kind 2"]),
    ]


def test_rows_that_are_ignored_are_those_of_the_querys_class_only() -> None:
    images, labels = made_up()
    ignored = np.arange(12) % 2 == 0
    gallery, queries = np.arange(9), np.array([10])
    found = search(
        SearchSetup("float", images), labels, "x", gallery=gallery, queries=queries, ignored=ignored
    )
    kept = np.array([row for row in gallery if labels[row] != labels[10] or not ignored[row]])
    assert len(kept) < 9
    expected = measured_by_loops(images[queries] @ images[kept].T, labels, kept, queries)
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)


def test_a_query_may_be_asked_to_find_itself() -> None:
    images, _ = made_up()
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    rows = np.arange(12)
    found = search(SearchSetup("float", unit), rows, "own", gallery=rows, queries=rows, itself=True)
    assert found.values["r1"] == found.values["map"] == 100


def test_codebooks_can_be_fitted_to_other_rows_and_get_the_classes_of_a_gallery() -> None:
    images, labels = made_up(60)
    setup = additive_codes(images, 16, trust=0.7)
    old = np.flatnonzero(labels < 2)
    known = fitted_to(setup, old, [str(label) for label in labels])
    assert known.fit is not None
    books = known.fit(images, ())
    assert isinstance(books, AdditiveCodebooks)
    assert (books.fitted_rows, books.class_names) == (len(old), ("0", "1"))
    rows = np.arange(60)
    found = search(known, labels, "x", gallery=rows[::2], queries=rows[1::2])
    complete = books.with_classes(images[::2], [str(label) for label in labels[::2]])
    assert complete.class_names == ("0", "1", "2")
    codes = complete.encode(images[::2], [str(label) for label in labels[::2]])
    scores = score_codes(complete.lookup_tables(images[1::2]), codes)
    best = labels[::2][scores.argmax(axis=1)] == labels[1::2]
    assert found.values["r1"] == pytest.approx(100 * best.mean(), abs=4)  # ties, if any
    assert found.bytes_per_image == pytest.approx(2 + complete.memory_bytes() / 30)
    plain = SearchSetup("float", images)
    assert fitted_to(plain, old, [None] * 60) is plain


def test_with_labels_rows_lie_between_themselves_and_the_mean_of_their_class() -> None:
    images, labels = made_up(30, classes=3)
    rows = 2 * normalise_sub_vectors(images, 1)
    gallery, queries = np.arange(20), np.arange(20, 30)
    names = [None if row == 4 else name for row, name in enumerate(names_of(labels))]
    placed = rows.copy()
    for row in gallery[gallery != 4]:
        same = [r for r in gallery if names[r] == names[row]]
        mean = rows[same].sum(axis=0)
        placed[row] = 0.6 * 2 * mean / np.linalg.norm(mean) + 0.4 * rows[row]
    setup = with_labels(SearchSetup("float", rows), 0.6)
    found = search(setup, labels, "", gallery=gallery, queries=queries, names=names)
    expected = search(SearchSetup("float", placed), labels, "", gallery=gallery, queries=queries)
    assert found.labels == "with"
    assert found.values == pytest.approx(expected.values)
    coded = with_labels(pq_codes(rows, 16, codebook_size=16), 0.6)
    assert fitted_to(coded, gallery, names).fit is not coded.fit


def test_posthoc_pq_takes_the_size_that_serves_learned_classes_best() -> None:
    images, labels = made_up(60, classes=4, dim=7)
    split = ClassSplit(labels >= 2, np.arange(60) % 4 == 1)
    setup = best_pq(images, 16, labels, split)
    assert setup.embeddings.shape == (60, 8)  # two bytes: a column of zeros makes it divisible
    gallery, queries = split.rows(unseen=False, query=False), split.rows(unseen=False, query=True)
    chosen = search(setup, labels, "", gallery=gallery, queries=queries).values["map"]
    for size in PQ_SIZES:
        other = pq_codes(images, 16, codebook_size=size)
        assert search(other, labels, "", gallery=gallery, queries=queries).values["map"] <= chosen
    assert setup.fit is not None
    books = setup.fit(setup.embeddings, ())
    codes = books.encode(setup.embeddings)
    for row, code in zip(setup.embeddings.reshape(60, 2, 4), codes, strict=True):
        for part in range(2):
            distances = np.square(books.codewords[part] - row[part]).sum(axis=1)
            assert distances[code[part]] == pytest.approx(distances.min(), abs=1e-6)


def test_one_image_in_five_of_a_class_asks() -> None:
    labels = np.array([3, 1, 3, 3, 1, 3, 3, 3, 9, 3])
    assert validation_queries(labels).tolist() == [True, True, *[False] * 5, True, False, False]
    assert not validation_queries(np.arange(4)).any()  # nobody would answer


def test_posthoc_pq_is_chosen_by_the_gallery_and_fitted_to_all_of_it() -> None:
    images, labels = made_up(90, classes=4, dim=8)
    gallery = LabelledEmbeddings(images[:60], labels[:60])
    queries = LabelledEmbeddings(images[60:], labels[60:])
    scores = evaluate_pq(queries, gallery, num_codebooks=2, cutoffs=(1,))
    size = 2 ** (scores.bits // 2)
    asking = validation_queries(gallery.labels)
    best = best_pq(gallery.embeddings, 16, gallery.labels, ClassSplit(asking & False, asking))
    assert best.name == f"post-hoc PQ, K={size}"
    setup = pq_codes(images, 16, codebook_size=size)
    found = search(setup, labels, "", gallery=np.arange(60), queries=np.arange(60, 90))
    assert scores.map_percent == pytest.approx(found.values["map"])
    assert 100 * scores.precision_at[1] == pytest.approx(found.values["r1"])
    assert evaluate_pq(queries, gallery, num_codebooks=2, largest=16).bits == 8
    assert evaluate_pq(queries, gallery, num_codebooks=2, largest=4).bits == 4


def test_posthoc_pq_with_a_codeword_for_each_row_is_float_search() -> None:
    images, labels = made_up(45, classes=3, dim=8)
    gallery = LabelledEmbeddings(images[:30], np.arange(30) % 3)
    queries = LabelledEmbeddings(images[30:], labels[30:])
    exact = evaluate_float(queries, gallery, sub_vectors=1)
    setup = pq_codes(gallery.embeddings, 16, codebook_size=32)
    assert setup.fit is not None
    books = setup.fit(setup.embeddings, ())
    assert np.allclose(books.decode(books.encode(setup.embeddings)), setup.embeddings, atol=1e-6)
    alone = LabelledEmbeddings(gallery.embeddings, np.arange(30))  # nobody can choose
    assert evaluate_pq(queries, alone, num_codebooks=2, largest=32).bits == 10
    fitted = evaluate_codes(
        LabelledEmbeddings(normalise_sub_vectors(queries.embeddings, 1), queries.labels),
        books.encode(setup.embeddings),
        gallery.labels,
        books,
        query_norm="raw",
    )
    assert fitted.map == pytest.approx(exact.map, abs=1e-6)
