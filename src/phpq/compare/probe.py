"""A linear probe: softmax regression over frozen features, in numpy; the penalty is validated.

Full-batch gradient descent with Nesterov momentum. Features are centred and scaled by one number,
so that one learning rate suits every trunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from phpq.additive import softmax
from phpq.codes import FloatArray, IntArray
from phpq.compare.spaces import Images

PENALTIES = (1e-4, 1e-3, 1e-2)  # candidates for the weight of squared weights
STEPS = 120
_RATE, _MOMENTUM = 1.0, 0.9

Probe = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]


def fit_probe(
    rows: FloatArray, labels: IntArray, *, classes: int, penalty: float, steps: int = STEPS
) -> tuple[FloatArray, FloatArray]:
    """Return weights (C, D) and bias (C,) of a classifier of rows (N, D)."""
    mean = rows.mean(axis=0)
    scale = 1 / max(float(np.sqrt(np.square(rows - mean).sum(axis=1).mean())), 1e-12)
    inputs = (rows - mean) * scale  # of length one, on average
    weights = np.zeros((classes, rows.shape[1]), np.float32)
    bias = np.zeros(classes, np.float32)
    velocity, bias_velocity = np.zeros_like(weights), np.zeros_like(bias)
    for step in range(steps):
        rate = _RATE * classes * (1 - step / steps)  # gradients are means over C classes
        logits = inputs @ (weights + _MOMENTUM * velocity).T + bias + _MOMENTUM * bias_velocity
        errors = softmax(logits)
        errors[np.arange(len(labels)), labels] -= 1
        gradient = errors.T @ inputs / len(rows) + penalty / classes * weights
        velocity = _MOMENTUM * velocity - rate * gradient
        bias_velocity = _MOMENTUM * bias_velocity - rate * errors.mean(axis=0)
        weights += velocity
        bias += bias_velocity
    weights *= scale
    return weights, bias - weights @ mean


def choose_probe(rows: FloatArray, images: Images) -> tuple[Probe, float]:
    """Return how a probe is fitted, and its penalty: the most accurate on held-out images."""
    classes, validation = len(images.class_names), images.validation_split()
    fits = {one: partial(fit_probe, classes=classes, penalty=one) for one in PENALTIES}
    if validation is None:
        return fits[PENALTIES[1]], PENALTIES[1]
    some, split = validation
    learned, held_out = some[split.rows(query=False)], some[split.rows(query=True)]

    def accuracy(penalty: float) -> float:
        weights, bias = fits[penalty](rows[learned], images.gallery[learned])
        predicted = (rows[held_out] @ weights.T + bias).argmax(axis=1)
        return float((predicted == images.gallery[held_out]).mean())

    best = max(PENALTIES, key=accuracy)
    return fits[best], best
