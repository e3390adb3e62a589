"""The protocols of new kinds on made-up embeddings: who asks whom, with which labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phpq.codes import FloatArray, IntArray
from phpq.errors import ShapeError
from phpq.evaluation.search import (
    ClassSplit,
    SearchSetup,
    additive_codes,
    fitted_to,
    names_of,
    search,
)
from phpq.evaluation.unseen import (
    BEFORE_REFIT,
    OPEN,
    UNSEEN,
    UnseenScores,
    before_refit,
    draw_shots,
    evaluate_unseen,
    find_originals,
    five_shot,
    flip_labels,
    half_labelled,
    open_protocols,
)

ROWS, CLASSES = 96, 8


def made_up(noise: float = 1.5) -> tuple[FloatArray, IntArray, ClassSplit]:
    """Return images of eight classes, of which the last four are new; every third image asks."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % CLASSES
    images = rng.standard_normal((CLASSES, 16))[labels] + noise * rng.standard_normal((ROWS, 16))
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    split = ClassSplit(labels >= 4, np.arange(ROWS) // CLASSES % 3 == 0)
    return unit.astype(np.float32), labels, split


@pytest.fixture(scope="module")
def scores() -> UnseenScores:
    images, labels, split = made_up()
    others = (SearchSetup("frozen features", images),)
    return evaluate_unseen(images, labels, split, bits=(16, 32), others=others)


def test_everything_is_measured_and_says_whether_labels_were_used(scores: UnseenScores) -> None:
    assert {score.labels for score in scores.scores} == {"with", "without"}
    for way, labels in (("float", "without"), ("codes", "without"), ("codes", "with")):
        for protocol in OPEN:
            assert scores.find(protocol, way, labels) is not None  # type: ignore[arg-type]
    lengths = [s.bits for s in scores.scores if (s.protocol, s.way) == (UNSEEN, "codes")]
    assert lengths == [16, 32]
    for way in ("codes", "float"):
        assert scores.find("five labelled", way, "with") is not None
    for labels in ("with", "without"):
        assert scores.find(BEFORE_REFIT, "codes", labels) is not None  # type: ignore[arg-type]
    names = {score.protocol for score in scores.scores}
    assert sum(name.startswith("wrong labels, trust") for name in names) == 12
    assert sum("half of the rows labelled" in name for name in names) == 2
    assert scores.find(UNSEEN, "frozen features", "without") is not None
    assert all(0 <= v <= 100 for score in scores.scores for v in score.values.values())
    assert scores.find(UNSEEN, "codes", "without", 48) is None


def test_an_addition_without_labels_is_as_good_as_a_refit_nearly() -> None:
    rng = np.random.default_rng(0)
    labels, centres = np.arange(1200) % 40, rng.standard_normal((40, 32))
    images = (centres[labels] + 0.8 * rng.standard_normal((1200, 32))).astype(np.float32)
    split = ClassSplit(labels >= 20, np.arange(1200) // 40 % 3 == 0)
    setup = additive_codes(images, 32)
    (added,) = before_refit((setup,), labels, split)
    after = next(s for s in open_protocols(setup, labels, split) if s.protocol == "unseen@all")
    assert (added.queries, added.gallery) == (after.queries, after.gallery)
    assert added.values["r1"] > after.values["r1"] - 3
    # Without that refit the added rows are hardly found.
    books = fitted_to(setup, split.rows(unseen=False, query=False), names_of(labels))
    queries, gallery = split.rows(unseen=True, query=True), split.rows(query=False)
    left = search(books, labels, "", gallery=gallery, queries=queries)
    assert left.values["r1"] < after.values["r1"] - 10


def test_labels_help_and_codes_come_near_floats(scores: UnseenScores) -> None:
    def value(protocol: str, way: str, labels: str) -> float:
        found = scores.find(protocol, way, labels)  # type: ignore[arg-type]
        assert found is not None
        return found.values["map"]

    assert value("unseen@all", "codes", "with") > value("unseen@all", "codes", "without") + 5
    assert value(UNSEEN, "codes", "without") > value(UNSEEN, "float", "without") - 10
    assert value("unseen@unseen", "codes", "with") >= value("unseen@all", "codes", "with")


def test_the_summary_holds_the_figures_that_count(scores: UnseenScores) -> None:
    data = json.loads(json.dumps(scores.to_dict()))
    assert set(data) == {"scores", "left_out", "half", "labelled", "open"}
    assert set(data["half"]["float"]) == {"r1", "map_r"}
    assert set(data["half"]["codes"]) == {"16", "32"}
    assert set(data["labelled"]) == set(data["open"]) == {"16"}  # 64 is not among the lengths
    assert set(data["labelled"]["16"]) == {"map", "p1", "all_map", "five_shot"}
    assert all(value is not None for value in data["labelled"]["16"].values())
    found = scores.find("unseen@all", "codes", "with")
    assert found is not None
    assert data["open"]["16"]["unseen_all_labelled"] == found.values["map"]
    assert data["left_out"] == []


def test_queries_and_galleries_are_those_that_the_protocol_names() -> None:
    images, labels, split = made_up()
    sizes = {
        score.protocol: (score.queries, score.gallery)
        for score in open_protocols(SearchSetup("float", images), labels, split)
    }
    assert sizes == {
        "seen@seen": (16, 32),
        "seen@all": (16, 64),
        "unseen@unseen": (16, 32),
        "unseen@all": (16, 64),
    }


def test_five_images_of_each_kind_are_drawn() -> None:
    _, labels, split = made_up()
    gallery = np.setdiff1d(split.rows(unseen=True, query=False), np.flatnonzero(labels == 6)[4:])
    drawn = draw_shots(labels, gallery, seed=1)
    few = int((labels[gallery] == 6).sum())
    assert few < 5
    assert [int((labels[drawn] == kind).sum()) for kind in range(4, 8)] == [5, 5, few, 5]
    assert set(drawn) <= set(gallery)
    assert drawn.tolist() == draw_shots(labels, gallery, seed=1).tolist()
    assert set(drawn) != set(draw_shots(labels, gallery, seed=2))


def test_naming_equals_the_loop_over_prototypes() -> None:
    images, labels, split = made_up(2.5)
    found = {score.way: score for score in five_shot(images, labels, split, bits=16)}
    gallery, queries = split.rows(unseen=True, query=False), split.rows(unseen=True, query=True)
    right = []
    for seed in range(5):
        drawn = draw_shots(labels, gallery, seed=seed)
        for query in queries:
            best, best_score = -1, -np.inf
            for kind in range(4, 8):
                mean = np.mean([images[row] for row in drawn if labels[row] == kind], axis=0)
                score = float(images[query] @ mean / np.linalg.norm(mean))
                if score > best_score:
                    best, best_score = kind, score
            right.append(best == labels[query])
    assert 0 < np.mean(right) < 1
    assert found["float"].values["accuracy"] == pytest.approx(100 * np.mean(right))
    assert found["codes"].values["accuracy"] == pytest.approx(100 * np.mean(right), abs=15)
    assert all(score.labels == "with" for score in found.values())


def test_a_tenth_of_the_labels_becomes_another_of_the_gallery() -> None:
    _, labels, split = made_up()
    gallery = split.rows(unseen=True, query=False)
    names, flipped = flip_labels(labels, gallery, seed=0)
    assert len(flipped) == 3
    assert set(flipped) <= set(gallery)
    for row, name in enumerate(names):
        assert (name != str(labels[row])) == (row in flipped)
        assert name is not None
        assert row not in flipped or 4 <= int(name) < 8
    only = np.flatnonzero(labels == 5)
    assert len(flip_labels(labels, only, seed=0)[1]) == 0  # there is no other label


@pytest.mark.parametrize("trust", [0.0, 0.7])
def test_a_changed_copy_finds_its_original(trust: float) -> None:
    images, labels, split = made_up()
    originals = split.rows(unseen=True, query=False)[::2]
    noise = 0.02 * np.random.default_rng(1).standard_normal((len(originals), 16))
    copies = (images[originals] + noise).astype(np.float32)
    way = additive_codes(images, 32, trust=trust)
    found = find_originals(way, labels, split, copies=copies, originals=originals)
    assert (found.queries, found.gallery) == (16, 32)
    assert found.values["r10"] > 90
    other = find_originals(way, labels, split, copies=copies, originals=originals[::-1])
    assert other.values["r1"] < found.values["r1"]
    rows = split.rows(unseen=True, query=False)
    float_way = SearchSetup("float", images)
    best = rows[(copies @ images[rows].T).argmax(axis=1)]
    exact = find_originals(float_way, labels, split, copies=copies, originals=originals)
    assert exact.values["r1"] == pytest.approx(100 * np.mean(best == originals))


def test_rows_with_and_without_label_are_looked_for_apart() -> None:
    images, labels, split = made_up(0.7)
    ways = list(half_labelled(additive_codes(images, 16, trust=0.7), labels, split))
    assert [score.gallery for score in ways] == [32, 32]
    assert all(score.values["r1"] > 60 for score in ways)
    assert ways[0].protocol.endswith(": labelled rows")


def test_bad_splits_are_refused() -> None:
    images, labels, split = made_up()
    with pytest.raises(ShapeError, match=r"split.unseen has shape \(95,\)"):
        evaluate_unseen(images, labels, ClassSplit(split.unseen[1:], split.query))
    with pytest.raises(ShapeError, match=r"split.query .* dtype 'int64'; expected one bool"):
        evaluate_unseen(images, labels, ClassSplit(split.unseen, split.query.astype(np.int64)))
    with pytest.raises(ShapeError, match="no gallery image of new kinds"):
        evaluate_unseen(images, labels, ClassSplit(np.zeros(ROWS, bool), split.query))


def test_a_single_new_kind_has_no_other_label_to_be_given() -> None:
    images, labels, split = made_up()
    one = ClassSplit(labels == 7, split.query)
    found = evaluate_unseen(images, labels, one, bits=(16,))
    assert not [score for score in found.scores if score.protocol.startswith("wrong labels")]
    assert found.find("unseen@all", "codes", "with") is not None
