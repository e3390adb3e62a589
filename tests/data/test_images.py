from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.config import DataConfig
from phpq.data import (
    Dataset,
    LabelledImages,
    hold_out,
    hold_out_classes,
    learned_part,
    open_dataset,
    unseen_split,
)
from phpq.data.images import draw_per_class, hash_order, named, split_by_mask, spread
from phpq.data.images import test_mask as split_mask
from phpq.errors import DataError
from picture_files import PlainReader, plain_images, write_classes

NAMES = ("owl", "wren")


def test_subsets_compose_and_keep_reading_the_right_image() -> None:
    images = plain_images([0, 1] * 5, NAMES)
    part = images.subset([8, 3, 5]).subset([2, 0])
    assert part.ids == ("i5", "i8")
    assert part.labels.tolist() == [1, 0]
    assert part.read(0).getpixel((0, 0)) == (5, 0, 0)
    assert part.read(1).getpixel((0, 0)) == (8, 0, 0)
    assert (part.reader, part.position(1)) == (PlainReader(), 8)
    assert part.path(0) is None
    assert len(images.subset([])) == 0
    assert images.subset(images.labels == 1).ids == ("i1", "i3", "i5", "i7", "i9")


def test_file_paths_survive_subsets_and_pickling(tmp_path: Path) -> None:
    # Worker processes receive readers this way; nothing is ever stored as pickle.
    train = open_dataset(write_classes(tmp_path / "birds", {"a": 4, "b": 4})).train
    copy = pickle.loads(pickle.dumps(train.subset([2, 1])))
    assert copy.path(0) == tmp_path / "birds" / train.ids[2]
    assert copy.read(0).tobytes() == train.read(2).tobytes()


def test_labels_are_int64_and_cannot_be_written() -> None:
    images = plain_images([0, 1], NAMES)
    assert images.labels.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        images.labels[0] = 1


@pytest.mark.parametrize(
    ("ids", "labels", "names", "message"),
    [
        (("a", "a"), [0, 1], NAMES, r"1 id \('a'\) more than once"),
        (("a", "b"), [0, 2], NAMES, "labels from 0 to 2, but there are 2 class names"),
        (("a", "b"), [-1, 0], NAMES, "labels from -1 to 0"),
        (("a", "b"), [0], NAMES, r"2 ids but labels of shape \(1,\)"),
        (("a", "b"), [0, 1], ("owl", "owl"), r"1 class \('owl'\) more than once"),
    ],
)
def test_bad_sets_are_refused(
    ids: tuple[str, ...], labels: list[int], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        LabelledImages("x", ids, np.array(labels), names, PlainReader())


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (plain_images([0, 0], ("owl",), "a"), plain_images([0], ("owl",), "b"), "one class only"),
        (plain_images([0, 0], NAMES, "a"), plain_images([1], NAMES, "b"), r"1 class \('wren'\) w"),
        (plain_images([0, 1], NAMES), plain_images([1], NAMES), r"1 id \('i0'\) in both"),
        (plain_images([0, 1], NAMES), plain_images([], NAMES, "b"), "test split .* missing or emp"),
        (plain_images([], NAMES), plain_images([0], NAMES, "b"), "train split .* missing or empty"),
        (
            plain_images([0, 1], NAMES),
            plain_images([0], ("owl", "tit"), "b"),
            r"1 class \('wren'\) only in train; 1 class \('tit'\) only in test",
        ),
        (plain_images([0, 1], NAMES), plain_images([0], NAMES[::-1], "b"), "in another order"),
    ],
)
def test_bad_data_sets_are_refused(
    train: LabelledImages, test: LabelledImages, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Dataset("x", train, test)


def test_hold_out_takes_its_queries_from_training_alone() -> None:
    everything = plain_images([0, 1] * 10, NAMES)
    dataset = split_by_mask(everything, np.arange(20) >= 14)
    held = hold_out(dataset, 2, seed=1)
    assert set(held.train.ids) | set(held.test.ids) == set(dataset.train.ids)
    assert held.test.class_sizes().tolist() == [2, 2]
    assert held.test.ids == hold_out(dataset, 2, seed=1).test.ids
    assert any(held.test.ids != hold_out(dataset, 2, seed=s).test.ids for s in range(2, 6))
    shuffled = replace(dataset, train=dataset.train.subset(np.arange(14)[::-1]))
    assert set(hold_out(shuffled, 2, seed=1).test.ids) == set(held.test.ids)


def test_hold_out_names_classes_that_are_too_small() -> None:
    dataset = Dataset("x", plain_images([0, 0, 0, 1, 1], NAMES), plain_images([0], NAMES, "b"))
    with pytest.raises(DataError, match=r"'wren'.*fewer than 3 training images. Hold out fewer"):
        hold_out(dataset, 2, seed=0)
    with pytest.raises(DataError, match="per_class=0 must be at least 1"):
        hold_out(dataset, 0, seed=0)


def many_classes(count: int = 10) -> Dataset:
    names = tuple(f"class{number}" for number in range(count))
    everything = plain_images(list(range(count)) * 5, names)
    return split_by_mask(everything, np.arange(5 * count) >= 3 * count)


@pytest.mark.parametrize(("share", "learned"), [(0.5, 5), (0.05, 9), (0.25, 7), (0.8, 2)])
def test_the_last_classes_are_held_out(share: float, learned: int) -> None:
    dataset = replace(many_classes(), source="somewhere")
    held = hold_out_classes(dataset, share)
    assert held.learned.class_names == dataset.class_names[:learned]
    assert held.learned.source == "somewhere"
    assert held.unseen_train.class_names == held.unseen_test.class_names == dataset.class_names
    for old, new, whole in (
        (held.learned.train, held.unseen_train, dataset.train),
        (held.learned.test, held.unseen_test, dataset.test),
    ):
        assert set(old.labels) == set(range(learned))
        assert set(new.labels) == set(range(learned, 10))
        assert sorted(old.ids + new.ids) == sorted(whole.ids)


def test_test_images_of_learned_classes_may_be_learned_but_for_one_each() -> None:
    dataset = many_classes()
    held = hold_out_classes(dataset, 0.5, learn_all=True)
    plain = hold_out_classes(dataset, 0.5)
    assert held.learned.train.class_sizes().tolist() == [4] * 5
    assert held.learned.test.class_sizes().tolist() == [1] * 5
    before = set(plain.learned.train.ids) | set(plain.learned.test.ids)
    assert set(held.learned.train.ids) | set(held.learned.test.ids) == before
    copied = pickle.loads(pickle.dumps(held.learned.train))  # worker processes read it so
    for row, name in enumerate(copied.ids):
        assert copied.read(row).getpixel((0, 0)) == (int(name[1:]), 0, 0)
        assert copied.path(row) is None
    assert held.unseen_train.ids == plain.unseen_train.ids


def test_files_of_joined_splits_are_found(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", dict.fromkeys("abcd", 10))
    train = hold_out_classes(open_dataset(root), 0.25, learn_all=True).learned.train
    assert [train.path(row) for row in range(len(train))] == [root / name for name in train.ids]


@pytest.mark.parametrize(
    ("classes", "share", "message"),
    [
        (2, 0.5, "0.5 of the 2 classes of 'i' leaves 1 to learn; at least two"),
        (10, 0.99, "leaves 0 to learn"),
        (10, 0.0, "A share of 0.0 of the classes cannot be held out"),
        (10, 1.0, "A share of 1.0"),
    ],
)
def test_shares_that_leave_nothing_are_refused(classes: int, share: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hold_out_classes(many_classes(classes), share)


def test_learned_classes_need_a_query() -> None:
    train = plain_images([0, 1, 2], ("a", "b", "c"))
    dataset = Dataset("x", train, plain_images([2], ("a", "b", "c"), "q"))
    with pytest.raises(DataError, match="None of the 2 classes of 'x' that are learned"):
        hold_out_classes(dataset, 0.3)


def test_what_a_run_learns_follows_its_settings() -> None:
    dataset = replace(many_classes(), source="somewhere")
    assert learned_part(dataset, DataConfig()).train.ids == dataset.train.ids
    both = learned_part(dataset, DataConfig(holdout_classes=0.5, holdout_per_class=1))
    assert (len(both.class_names), len(both.train), len(both.test)) == (5, 10, 5)
    assert both.source == "somewhere"
    assert set(both.test.ids) <= set(dataset.train.ids)
    everything = learned_part(dataset, DataConfig(holdout_classes=0.5, learned_images="all"))
    assert (len(everything.train), len(everything.test)) == (20, 5)


def test_queries_of_new_kinds_are_their_test_images_unless_those_are_not_looked_at() -> None:
    dataset = many_classes()
    gallery, queries = unseen_split(dataset, DataConfig(holdout_classes=0.5))
    assert (gallery.class_sizes()[5:].tolist(), queries.class_sizes()[5:].tolist()) == (
        [3] * 5,
        [2] * 5,
    )
    assert set(queries.ids) <= set(dataset.test.ids)
    config = DataConfig(holdout_classes=0.5, holdout_per_class=2)
    gallery, queries = unseen_split(dataset, config)
    assert (gallery.class_sizes()[5:].tolist(), queries.class_sizes()[5:].tolist()) == (
        [1] * 5,
        [2] * 5,
    )
    assert set(gallery.ids + queries.ids) <= set(dataset.train.ids)
    none = replace(dataset, test=dataset.test.subset(dataset.test.labels < 5))
    gallery, queries = unseen_split(none, DataConfig(holdout_classes=0.5))
    assert (gallery.class_sizes()[5:].tolist(), queries.class_sizes()[5:].tolist()) == (
        [2] * 5,
        [1] * 5,
    )


@given(st.sets(st.text(max_size=8), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=40)
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
@settings(max_examples=30)
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


def test_positions_are_spread_from_the_first_to_the_last() -> None:
    assert spread(10, 4).tolist() == [0, 3, 6, 9]
    assert spread(3, 4).tolist() == [0, 1, 2]
