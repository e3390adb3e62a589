"""Made-up rows, and the images that settings are chosen by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from made_up_comparisons import CLASSES, made_up_images, made_up_learned, made_up_space
from phpq.compare.spaces import synthetic_rows, unit_space


def test_made_up_rows_come_after_the_real_ones_and_lie_in_their_class() -> None:
    images = made_up_images()
    space = made_up_space(images)
    blocks = list(synthetic_rows(space.gallery, images.gallery, 2000, seed=3))
    rows, labels = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
    assert rows.shape == (2000, 32)
    np.testing.assert_array_equal(rows[: len(space.gallery)], space.gallery)
    made, own = rows[len(space.gallery) :], labels[len(space.gallery) :]
    assert len(np.unique(made, axis=0)) == len(made)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-4)
    means = np.stack([space.gallery[images.gallery == c].mean(axis=0) for c in range(CLASSES)])
    nearest = (made @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(axis=1)
    assert (nearest == own).mean() > 0.9


def test_a_smaller_gallery_is_the_first_real_rows() -> None:
    images = made_up_images()
    space = made_up_space(images)
    ((rows, labels),) = synthetic_rows(space.gallery, images.gallery, 10)
    np.testing.assert_array_equal(rows, space.gallery[:10])
    assert labels.tolist() == images.gallery[:10].tolist()


def test_settings_are_chosen_on_gallery_images_a_fifth_of_a_class() -> None:
    images = made_up_images(per_class=10)
    choice = images.validation_split()
    assert choice is not None
    rows, split = choice
    assert len(rows) == len(images.gallery)
    assert np.bincount(images.gallery[rows[split.query]]).tolist() == [2] * CLASSES
    assert not split.unseen.any()


def test_large_galleries_are_chosen_by_some_classes() -> None:
    images = made_up_images(per_class=10)
    choice = images.validation_split(most=25)
    assert choice is not None
    assert len(choice[0]) == 20
    assert len(np.unique(images.gallery[choice[0]])) == 2


def test_one_image_a_class_leaves_nothing_to_choose_by() -> None:
    assert made_up_images(per_class=1).validation_split() is None


def test_seen_and_unseen_queries() -> None:
    images = made_up_images()
    assert len(images.unseen_queries) == 3
    assert len(images.seen_queries) == 15
    assert images.names(np.array([0, 5])) == ["kind 0", "kind 5"]


def test_a_space_is_padded_for_product_codes_and_places_rows() -> None:
    rows = np.ones((3, 20), np.float32)
    space = unit_space("odd", rows, rows)
    assert space.gallery.shape == (3, 32)
    np.testing.assert_allclose((space.gallery * space.gallery).sum(axis=1), 1, rtol=1e-5)
    learned = made_up_learned(made_up_images())
    placed = replace(learned, gallery=3 * learned.gallery).float_space()
    halves = placed.gallery.reshape(len(placed.gallery), 2, -1)
    np.testing.assert_allclose(np.linalg.norm(halves, axis=2), 1, rtol=1e-5)
    assert placed.codebooks is None
