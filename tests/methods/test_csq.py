"""CSQ: the loss by loops, Hadamard centres where they suffice, far random ones elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.csq import CSQ, hash_centres
from tiny_hashing import BITS, random_batch, tiny_method
from tiny_runs import CLASSES


def csq(*assignments: str) -> CSQ:
    method = tiny_method("csq", *assignments)
    assert isinstance(method, CSQ)
    return method


def nearest_pair(centres: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> int:
    """Return the least Hamming distance between two centres, by loops."""
    return min(
        sum(a != b for a, b in zip(first, second, strict=True))
        for number, first in enumerate(centres.tolist())
        for second in centres.tolist()[:number]
    )


def test_the_loss_is_that_of_loops() -> None:
    method = csq("method.options.quantization=0.3")
    outputs, labels = random_batch()
    centres = hash_centres(CLASSES, BITS)
    losses, gaps = [], []
    for output, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        for value, wanted in zip(output, centres[label].tolist(), strict=True):
            bit = (math.tanh(value) + 1) / 2
            losses.append(-math.log(bit if wanted > 0 else 1 - bit))
            gaps.append((abs(math.tanh(value)) - 1) ** 2)
    centre, gap = sum(losses) / len(losses), sum(gaps) / len(gaps)
    total, *parts = method.loss(outputs, labels, torch.arange(8))
    assert parts[0].item() == pytest.approx(centre, rel=1e-4)
    assert parts[1].item() == pytest.approx(gap, rel=1e-4)
    assert total.item() == pytest.approx(centre + 0.3 * gap, rel=1e-4)


def test_certain_outputs_stay_finite() -> None:
    outputs, labels = random_batch(spread=1e3)
    total, *_ = csq().loss(outputs, labels, torch.arange(8))
    torch.autograd.backward(total)
    assert total.isfinite()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize(("num_classes", "bits"), [(4, 16), (32, 16), (128, 64), (5, 8)])
def test_centres_are_half_of_the_bits_apart_where_hadamard_suffices(
    num_classes: int, bits: int
) -> None:
    centres = hash_centres(num_classes, bits)
    assert centres.shape == (num_classes, bits)
    products = centres @ centres.T - bits * np.eye(num_classes)
    assert set(np.unique(products)) <= {0, -bits}  # orthogonal, or one the negative of the other


@pytest.mark.parametrize(("num_classes", "bits"), [(40, 16), (30, 24), (100, 48)])
def test_other_centres_are_balanced_distinct_and_farther_than_chance(
    num_classes: int, bits: int
) -> None:
    centres = hash_centres(num_classes, bits)
    assert centres.shape == (num_classes, bits)
    assert centres.dtype == np.float32
    assert not centres.sum(1).any()
    generator = np.random.default_rng(0)
    balanced = np.repeat(np.array([-1.0, 1.0], np.float32), bits // 2)
    chance = generator.permuted(np.tile(balanced, (num_classes, 1)), axis=1)
    assert nearest_pair(centres) > nearest_pair(chance)


def test_centres_of_the_birds_have_no_near_twins() -> None:
    centres = hash_centres(200, 16)
    assert nearest_pair(centres) >= 4


def test_centres_are_the_same_in_every_run() -> None:
    np.testing.assert_array_equal(hash_centres(40, 16), hash_centres(40, 16))
    method = csq()
    np.testing.assert_array_equal(method.get_buffer("centres").numpy(), hash_centres(CLASSES, 16))
    assert "centres" not in method.state_dict()


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"options\.quantization=-1.* must be 0 or more"):
        tiny_method("csq", "method.options.quantization=-1")
