"""A linear probe: softmax regression over frozen features, in numpy, its penalty chosen held out.

Full-batch gradient descent with Nesterov's momentum from the class means; features are centred and
scaled by one number, so that a step suits every trunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from phpq.additive import softmax
from phpq.codes import FloatArray, IntArray
from phpq.compare.spaces import Images

PENALTIES = (1e-4, 1e-3, 1e-2)  # of squared weights, of which the best is taken
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
    moves, shift = np.zeros_like(weights), np.zeros_like(bias)
    rate = _RATE * classes  # a class is right for one row in C
    for step in range(steps):
        slow = rate * (1 - step / steps)
        chances = softmax((inputs @ (weights + _MOMENTUM * moves).T) + bias + _MOMENTUM * shift)
        chances[np.arange(len(labels)), labels] -= 1
        slope = chances.T @ inputs / len(rows) + penalty / classes * weights
        moves = _MOMENTUM * moves - slow * slope
        shift = _MOMENTUM * shift - slow * chances.mean(axis=0)
        weights += moves
        bias += shift
    weights *= scale
    return weights, bias - weights @ mean


def choose_probe(rows: FloatArray, images: Images) -> tuple[Probe, float]:
    """Return how a probe is fitted, with the penalty that names held-out gallery images best."""
    classes, choice = len(images.class_names), images.choice()
    fits = {one: partial(fit_probe, classes=classes, penalty=one) for one in PENALTIES}
    if choice is None:
        return fits[PENALTIES[1]], PENALTIES[1]
    some, split = choice
    learned, asking = some[split.rows(query=False)], some[split.rows(query=True)]

    def right(penalty: float) -> float:
        weights, bias = fits[penalty](rows[learned], images.gallery[learned])
        named = (rows[asking] @ weights.T + bias).argmax(axis=1)
        return float((named == images.gallery[asking]).mean())

    best = max(PENALTIES, key=right)
    return fits[best], best
