"""Probabilities by class scores, each formula against plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from phpq.additive.probabilities import (
    ERROR_RATES,
    NEVER,
    Calibration,
    ProbabilityModel,
    ancestors,
    find_cut_off,
    fit_logistic,
    fit_sharpness,
    open_set_features,
    parent_levels,
    renamed_parents,
    sigmoid,
)

PARENTS = {"a": "A", "b": "A", "c": "C", "A": "top", "C": "top"}


def some_model(**changes: object) -> ProbabilityModel:
    values: dict[str, object] = {
        "weights": (-1.0, 2.0, 3.0, 0.5),
        "parent_weights": ((-2.0, 1.5),),
        "cut_offs": (tuple(0.9 - each for each in ERROR_RATES), tuple(0.8 for _ in ERROR_RATES)),
        "named": tuple(ERROR_RATES),
        "answered": tuple(2 * each for each in ERROR_RATES),
        "images": 100,
    }
    return ProbabilityModel(**{**values, **changes})  # type: ignore[arg-type]


def test_the_known_probability_is_that_of_plain_loops() -> None:
    scores = np.array([[0.4, 0.1, -0.2], [0.3, -np.inf, 0.35]], np.float32)
    known = some_model().known(scores, 8.0)
    for row, found in zip(scores.tolist(), known, strict=True):
        there = [each for each in row if math.isfinite(each)]
        best, mean = max(there), sum(there) / len(there)
        share = math.exp(8 * best) / sum(math.exp(8 * each) for each in there)
        odds = math.log(share / (1 - share))
        assert found == pytest.approx(1 / (1 + math.exp(-(-1 + 2 * best + 3 * mean + odds / 2))))


def test_one_class_alone_and_many_alike_stay_finite() -> None:
    assert np.isfinite(open_set_features(np.array([[0.5]], np.float32), 64.0)).all()
    assert np.isfinite(open_set_features(np.full((1, 5000), 0.5, np.float32), 64.0)).all()


def test_the_probability_of_a_parent_counts_unseen_classes() -> None:
    model, known, share = some_model(), np.array([0.7, 0.2]), np.array([0.9, 0.4])
    unseen = [1 / (1 + math.exp(2 - 1.5 * math.log((q + 1e-4) / (1.0001 - q)))) for q in share]
    expected = [k * q + (1 - k) * r for k, q, r in zip(known, share, unseen, strict=True)]
    assert model.parent(1, known, share) == pytest.approx(expected)
    assert model.parent(2, known, share) == pytest.approx(known * share)  # not fitted


def test_the_cut_off_is_that_of_the_share_below() -> None:
    model = some_model()
    assert model.cut_off(0, 0.05) == 0.9 - 0.05
    assert model.cut_off(0, 0.0599) == 0.9 - 0.05
    assert model.cut_off(1, 0.05) == 0.8
    assert model.cut_off(2, 0.05) == model.cut_off(0, 0.05)  # none of its own
    assert model.cut_off(0, 0.0) == NEVER
    assert model.cut_off(0, 1.0) == 0.0  # all may be wrong: everything gets a name
    assert (model.summary()["named"], model.summary()["answered"]) == (0.05, 0.1)


def test_facts_are_plain_and_come_back() -> None:
    model = some_model(held_out=True)
    facts = json.loads(json.dumps(model.to_facts()))
    assert ProbabilityModel.from_facts(facts) == model
    # Names and order of the file format: files are named by their hash.
    assert " ".join(facts) == "weights kin cut_offs named answered images held_out"
    with pytest.raises(ValueError, match="do not fit together"):
        ProbabilityModel.from_facts(facts | {"weights": [1.0]})
    with pytest.raises(ValueError, match="do not fit together"):
        ProbabilityModel.from_facts(facts | {"named": [0.5]})


def test_a_logistic_function_is_found_again() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(2, 3, size=(20_000, 2))
    right = generator.random(len(values)) < sigmoid(1 - 2 * values[:, 0] + 0.5 * values[:, 1])
    found = fit_logistic(values, right, np.ones(len(values)))
    assert found == pytest.approx((1, -2, 0.5), abs=0.1)


def test_a_logistic_function_of_separable_values_is_finite() -> None:
    values, right = np.array([[-1.0], [1.0]] * 50), np.array([False, True] * 50)
    assert np.isfinite(fit_logistic(values, right, np.ones(100))).all()
    assert np.isfinite(fit_logistic(0 * values, right, np.ones(100))).all()


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 1.0])
def test_cut_offs_by_plain_loops(rate: float) -> None:
    generator = np.random.default_rng(1)
    model = generator.integers(0, 30, size=200) / 30  # many are equal
    right, weights = generator.random(200) < model, generator.random(200)
    good = [NEVER]
    for cut in sorted(set(model.tolist())):
        wrong = sum(w for c, r, w in zip(model, right, weights, strict=True) if c >= cut and not r)
        given = sum(w for c, w in zip(model, weights, strict=True) if c >= cut)
        if wrong <= rate * given:
            good.append(cut)
    assert find_cut_off(model, right, weights, rate) == min(good)


def test_no_answers_have_no_cut_off() -> None:
    nothing = np.empty(0)
    assert find_cut_off(nothing, np.empty(0, np.bool_), nothing, 0.1) == NEVER


def test_levels_of_parents() -> None:
    assert ancestors("a", PARENTS) == ["A", "top"]
    assert ancestors("x", {"x": "y", "y": "x"}) == ["y", "x"]  # a circle ends
    first, second = parent_levels(("a", "c", "d"), PARENTS)
    assert (first.names, first.numbers.tolist()) == (("A", "C", "d"), [0, 1, 2])
    assert (second.names, second.numbers.tolist()) == (("d", "top"), [1, 1, 0])
    assert (first.is_parent.tolist(), second.is_parent.tolist()) == (
        [True, True, False],
        [False, True],
    )
    assert parent_levels(("a", "b"), {}) == ()
    assert parent_levels((), PARENTS) == ()


def test_the_likeliest_parent_by_plain_loops() -> None:
    (first, *_), names = parent_levels(("a", "b", "c", "d"), PARENTS), "abcd"
    shares = np.random.default_rng(2).dirichlet(np.ones(4), size=50)
    for passing in (None, np.array([2, 3])):
        best, numbers = first.best_parent(shares, passing)
        for row, share, number in zip(shares, best, numbers, strict=True):
            sums = {"A": row[0] + row[1], "C": row[2]}  # d belongs to nothing
            if passing is not None:
                del sums["A"]
            winner = max(sums, key=sums.__getitem__)
            assert (first.names[number], share) == (winner, pytest.approx(sums[winner]))
    best, numbers = first.best_parent(shares, np.array([names.index("d")]))
    assert (set(best), set(numbers)) == ({0.0}, {-1})


def test_what_is_kept_of_it_comes_back() -> None:
    for calibration in (
        Calibration(sharpness=3.5, probabilities=some_model(), parents=PARENTS),
        Calibration(parents={"a": "A"}),
    ):
        assert Calibration.from_facts(json.loads(json.dumps(calibration.to_facts()))) == calibration


@pytest.mark.parametrize(
    "changes",
    [
        {"sharpness": math.nan},
        {"sharpness": "much"},
        {"parents": ["a"]},
        {"chances": {"weights": [1]}},
        {"chances": 3},
    ],
)
def test_what_nobody_wrote_is_refused(changes: dict[str, object]) -> None:
    facts = Calibration(probabilities=some_model()).to_facts() | changes
    with pytest.raises((ValueError, KeyError, TypeError)):
        Calibration.from_facts(facts)


def test_parents_follow_names() -> None:
    renamed = renamed_parents(PARENTS, {"a": "z", "b": "A"})  # the second takes a parent's name
    assert renamed == {"z": "A", "c": "C", "A": "top", "C": "top"}


def test_without_parents_classes_keep_their_cut_offs() -> None:
    model = some_model()
    bare = model.without_parents()
    assert (bare.parent_weights, bare.cut_offs, bare.answered) == (
        (),
        model.cut_offs[:1],
        model.named,
    )
    summary = bare.summary()
    assert (summary["images"], summary["named"]) == (100, summary["answered"])


def test_the_sharpness_is_that_of_a_plain_loop() -> None:
    generator = np.random.default_rng(5)
    classes = generator.integers(6, size=80)
    scores = generator.normal(size=(80, 6)).astype(np.float32)
    scores[np.arange(80), classes] += 1
    factors = np.geomspace(0.1, 20, 15)

    def likelihood(factor: float) -> float:
        total = 0.0
        for row, kind in zip(scores.tolist(), classes.tolist(), strict=True):
            total += factor * row[kind] - math.log(sum(math.exp(factor * one) for one in row))
        return total

    best = max(factors.tolist(), key=likelihood)
    assert fit_sharpness(scores, classes, factors) == best
    assert factors[0] < best < factors[-1]
