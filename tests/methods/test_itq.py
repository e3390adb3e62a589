"""ITQ: its error falls with every round and beats a random rotation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from phpq.errors import ConfigError
from phpq.methods._shallow import Numbers, principal_axes
from phpq.methods.itq import ROUNDS, rotate_to_signs
from shallow_features import CHANNELS, made_up_features, shallow, unit_features


def components(rows: int = 400, bits: int = 16) -> Numbers:
    train = made_up_features(rows)
    unit = unit_features(train, train).astype(np.float64)
    values: Numbers = (unit - unit.mean(0)) @ principal_axes(unit, bits).axes.T
    return values


def error(values: Numbers) -> float:
    """Sum the squared distances to the nearest corner of the cube, by a plain loop."""
    return float(sum((abs(value) - 1) ** 2 for value in values.ravel().tolist()))


def test_the_error_falls_with_every_round() -> None:
    # Published implementations, faiss among them, turn the rotation the wrong way round.
    values = components()
    errors = [error(values @ rotate_to_signs(values, seed=0, rounds=n)) for n in range(12)]
    errors.append(error(values @ rotate_to_signs(values, seed=0)))
    for before, after in itertools.pairwise(errors):
        assert after <= before * (1 + 1e-9)
    assert errors[0] - errors[-1] > 2 * (errors[0] - errors[1])  # not in the first round only


def test_the_rotation_beats_random_ones() -> None:
    values = components()
    random = [error(values @ rotate_to_signs(values, seed=s, rounds=0)) for s in range(20)]
    fitted = [error(values @ rotate_to_signs(values, seed=s)) for s in range(3)]
    assert max(fitted) < min(random)


def test_the_result_is_a_rotation_and_the_best_for_its_signs() -> None:
    values = components()
    rotation = rotate_to_signs(values, seed=0, rounds=400)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(16), atol=1e-9)
    turned = values @ rotation
    signs = np.where(turned >= 0, 1.0, -1.0)
    # Turning a little in any plane does not help: the gain of a turn by an angle t is
    # t * (G - G')_ij with G = (V R)' B, so that G is symmetric at the optimum.
    gain = turned.T @ signs
    np.testing.assert_allclose(gain, gain.T, atol=1e-6 * np.abs(gain).max())


def test_corners_turned_away_are_found_again() -> None:
    corners = np.where(np.random.default_rng(0).random((300, 8)) > 0.5, 1.0, -1.0)
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
    found = min(
        error(corners @ turn @ rotate_to_signs(corners @ turn, seed=s, rounds=200))
        for s in range(8)
    )
    assert found < 1e-12


def test_it_is_no_worse_than_faiss() -> None:
    import faiss

    values = components()
    matrix = faiss.ITQMatrix(16)
    matrix.max_iter = ROUNDS
    matrix.train(values.astype(np.float32))
    theirs = error(matrix.apply(values.astype(np.float32)))
    assert min(error(values @ rotate_to_signs(values, seed=s)) for s in range(3)) <= theirs


def test_bits_are_the_signs_of_the_rotated_components() -> None:
    train, others = made_up_features(400), made_up_features(10, seed=1)
    method = shallow("itq")
    method.fit_features(train, seed=7)
    unit = unit_features(train, train).astype(np.float64)
    axes = principal_axes(unit, 16).axes
    rotation = rotate_to_signs((unit - unit.mean(0)) @ axes.T, seed=7)
    values = (unit_features(others, train) - unit.mean(0)) @ axes.T @ rotation
    signs = method.encode_features(others).numpy()
    sure = np.abs(values) > 1e-3  # rounding decides the others
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(signs[sure], np.sign(values)[sure])


def test_more_bits_than_directions_are_refused() -> None:
    message = rf"'itq' with bits=128 .* features of 'test_resnet' have {CHANNELS}\."
    with pytest.raises(ConfigError, match=message):
        shallow("itq", bits=128)
    with pytest.raises(ConfigError, match=r"'itq' with bits=16 .* 16 images have 15"):
        shallow("itq").fit_features(made_up_features(16), seed=0)
    shallow("itq").fit_features(made_up_features(17), seed=0)
