from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.data.split import draw_per_class, hash_order, named
from phpq.data.split import test_mask as split_mask
from phpq.errors import DataError


@given(st.sets(st.text(max_size=8), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_order_follows_ids_not_positions(ids: set[str], rng: object) -> None:
    first = sorted(ids)
    second = first[::-1]
    assert [first[i] for i in hash_order(first, 3)] == [second[i] for i in hash_order(second, 3)]


def test_order_changes_with_the_seed_and_takes_names_that_are_not_utf8() -> None:
    ids = [f"image{i}" for i in range(50)] + ["bad\udcffname"]
    assert hash_order(ids, 0).tolist() != hash_order(ids, 1).tolist()
    assert sorted(hash_order(ids, 0)) == list(range(51))


def test_draws_exactly_the_counts() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 9)
    ids = [f"x{i}" for i in range(len(labels))]
    drawn = draw_per_class(ids, labels, np.array([2, 0, 4]), seed=7)
    assert np.bincount(labels[drawn], minlength=3).tolist() == [2, 0, 4]


@given(st.lists(st.integers(2, 30), min_size=2, max_size=5), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_a_fifth_of_each_class_and_at_least_one(sizes: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    ids = [f"{label}/{i}" for i, label in enumerate(labels)]
    mask = split_mask(ids, labels, [str(c) for c in range(len(sizes))], seed=seed)
    for label, size in enumerate(sizes):
        assert mask[labels == label].sum() == max(1, round(size * 0.2))


def test_a_new_image_moves_at_most_one_old_one() -> None:
    old = [f"a/{i}" for i in range(40)]
    before = split_mask(old, np.zeros(40, dtype=np.int64), ["a"], seed=0)
    for new in (f"new{k}" for k in range(20)):
        after = split_mask([new, *old], np.zeros(41, dtype=np.int64), ["a"], seed=0)
        assert (after[1:] != before).sum() <= 1


def test_a_lonely_image_cannot_be_split() -> None:
    with pytest.raises(DataError, match=r"1 class \('wren'\) with one image only.*'split'"):
        split_mask(["a", "b", "c"], np.array([0, 0, 1]), ["owl", "wren"], seed=0)


def test_long_lists_of_names_are_cut() -> None:
    assert named(["a"], "class") == "1 class ('a')"
    assert named([str(i) for i in range(12)], "id").endswith("'9', and 2 more)")
