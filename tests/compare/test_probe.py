"""The linear probe: its step against plain loops, and what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from made_up_comparisons import made_up_images, made_up_space
from phpq.compare.probe import PENALTIES, choose_probe, fit_probe


def test_one_step_is_the_gradient_of_the_softmax_loss() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 1, 2, 1, 0])
    weights, bias = fit_probe(rows, labels, classes=3, penalty=0.0, steps=1)
    mean = rows.mean(axis=0)
    scale = 1 / math.sqrt(sum(float(np.sum((row - mean) ** 2)) for row in rows) / 5)
    wanted, shift = np.zeros((3, 3)), np.zeros(3)
    for row, label in zip(rows, labels, strict=True):
        for kind in range(3):  # all classes are as likely before the first step
            error = 1 / 3 - (kind == label)
            wanted[kind] -= 3 * error * (row - mean) * scale / 5
            shift[kind] -= 3 * error / 5
    np.testing.assert_allclose(weights, wanted * scale, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(bias, shift - weights @ mean, rtol=1e-4, atol=1e-6)


def test_it_tells_classes_apart_and_a_penalty_is_chosen_held_out() -> None:
    images = made_up_images(per_class=12)
    space = made_up_space(images)
    fit, penalty = choose_probe(space.gallery, images)
    assert penalty in PENALTIES
    weights, bias = fit(space.gallery, images.gallery)
    named = (space.queries @ weights.T + bias).argmax(axis=1)
    assert (named == images.queries).mean() > 0.6
    small = fit_probe(space.gallery, images.gallery, classes=6, penalty=3.0)[0]
    assert np.linalg.norm(small) < np.linalg.norm(weights)


def test_without_a_second_image_the_penalty_is_the_middle_one() -> None:
    images = made_up_images(per_class=1)
    assert choose_probe(made_up_space(images).gallery, images)[1] == pytest.approx(PENALTIES[1])
