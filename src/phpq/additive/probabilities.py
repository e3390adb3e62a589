"""Turns class scores into probabilities, open set: a photo may show none of the classes. Numpy.

    p(class)  = p(known) * posterior(class)
    p(parent) = p(known) * posterior(its classes) + (1 - p(known)) * unseen(posterior(its classes))

Posteriors are a softmax of class scores. p(known), the probability that the photo shows one of the
classes, is a logistic function of three features: the best score, the mean score, and the log odds
of the best class. `unseen`, another logistic function, is the probability that a photo of a class
outside the gallery still belongs to the best parent.

Both assume that half of the photos show a class outside the gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray, IntArray
from phpq.hits import WRONG_AT_MOST

Floats = NDArray[np.float64]
# Error rates that cut-offs are stored for; a rate in between takes the next lower one.
ERROR_RATES = (0.001, 0.002, 0.005, *(n / 100 for n in range(1, 51)))
NEVER = 2.0  # a cut-off that no probability reaches
_MAX_LOG_ODDS = 10.0  # of the best class; beyond that the feature carries no information
_SMOOTHING = 1e-4  # keeps log odds finite


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbabilityModel:
    """Fitted logistic functions for probabilities, and the cut-offs for a verdict."""

    weights: tuple[float, ...]  # of p(known): constant, best score, mean score, log odds
    parent_weights: tuple[tuple[float, float], ...] = ()  # of `unseen`, per level: constant, slope
    # Per level, classes first, then parents, and per error rate.
    cut_offs: tuple[tuple[float, ...], ...]
    named: tuple[float, ...]  # per error rate: share of photos of known classes that get a class
    answered: tuple[float, ...]  # the same for a class or a parent
    images: int  # of known classes that it was fitted to
    held_out: bool = False  # fitted to photos outside the gallery, not to its own rows

    def known(self, scores: NDArray[Any], sharpness: float) -> Floats:
        """Return p(known) (Q,) from class scores (Q, C)."""
        features = open_set_features(scores, sharpness)
        return sigmoid(features @ np.array(self.weights[1:]) + self.weights[0])

    def parent(self, level: int, known: Floats, posterior: Floats) -> Floats:
        """Return p(parent) (Q,) at a level >= 1, from p(known) and the posterior of its classes."""
        if level > len(self.parent_weights):  # parents set after the fit: a lower bound
            return known * posterior
        constant, slope = self.parent_weights[level - 1]
        unseen = sigmoid(constant + slope * log_odds(posterior))
        return known * posterior + (1 - known) * unseen

    def cut_off(self, level: int, wrong_at_most: float) -> float:
        """Return the probability that a name of a level needs at an error rate."""
        if wrong_at_most > ERROR_RATES[-1]:
            return 0.0 if level == 0 else NEVER
        place = int(np.searchsorted(ERROR_RATES, wrong_at_most + 1e-9, side="right")) - 1
        if place < 0:
            return NEVER
        # A parent level that was not fitted uses the cut-off of the classes.
        return self.cut_offs[level if level < len(self.cut_offs) else 0][place]

    def summary(self) -> dict[str, Any]:
        """Return, as plain data, the size of the fit and its coverage at the default error rate."""
        place = ERROR_RATES.index(WRONG_AT_MOST)
        return {
            "images": self.images,
            "wrong_at_most": WRONG_AT_MOST,
            "named": self.named[place],
            "answered": self.answered[place],
        }

    def without_parents(self) -> ProbabilityModel:
        """Return the same model for classes alone, as when the parents have changed."""
        return replace(self, parent_weights=(), cut_offs=self.cut_offs[:1], answered=self.named)

    def to_facts(self) -> dict[str, Any]:
        """Return plain data for JSON; files call the weights of parents `kin`."""
        facts = asdict(self)
        return {"kin" if name == "parent_weights" else name: facts[name] for name in facts}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> ProbabilityModel:
        """Read what `to_facts` wrote."""
        values = dict(facts)
        values["parent_weights"] = values.pop("kin")
        for name in ("parent_weights", "cut_offs"):
            values[name] = tuple(tuple(row) for row in values[name])
        for name in ("weights", "named", "answered"):
            values[name] = tuple(values[name])
        model = cls(**values)
        good = len(model.weights) == 4 and model.cut_offs
        if not good or any(len(row) != len(ERROR_RATES) for row in (*model.cut_offs, model.named)):
            raise ValueError("its probabilities do not fit together")
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that turns class scores into verdicts; kept in a small JSON file."""

    sharpness: float = 1.0  # inverse temperature of the softmax over class scores
    probabilities: ProbabilityModel | None = None  # None: not fitted
    parents: Mapping[str, str] = field(default_factory=dict)  # label or parent to its parent

    def to_facts(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "sharpness": self.sharpness,
            "chances": self.probabilities and self.probabilities.to_facts(),
            "parents": dict(sorted(self.parents.items())),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Calibration:
        """Read what `to_facts` wrote; a ValueError, KeyError or TypeError for anything else."""
        fitted, parents = facts["chances"], facts["parents"]
        sharpness = float(facts["sharpness"])
        if not np.isfinite(sharpness) or not isinstance(parents, dict):
            raise ValueError("its values are not those of probabilities")
        return cls(
            sharpness=sharpness,
            probabilities=None if fitted is None else ProbabilityModel.from_facts(fitted),
            parents=parents,
        )


def open_set_features(scores: NDArray[Any], sharpness: float) -> Floats:
    """Return the features (Q, 3) of p(known); classes with a score of -inf do not count."""
    finite = np.isfinite(scores)
    best = scores.max(axis=1).astype(np.float64)
    mean = np.where(finite, scores, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    against = np.exp(sharpness * (scores - best[:, None])).sum(axis=1) - 1  # odds against the best
    odds = -np.log(np.clip(against, np.exp(-_MAX_LOG_ODDS), np.exp(_MAX_LOG_ODDS)))
    return np.stack([best, mean, odds], axis=1)


def softmax(scores: NDArray[Any]) -> FloatArray:
    """Turn scores (Q, C) into posteriors that sum to 1 for each query."""
    if not scores.shape[1]:
        return scores.astype(np.float32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    posteriors: FloatArray = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return posteriors


def fit_sharpness(scores: NDArray[Any], classes: IntArray, candidates: NDArray[Any]) -> float:
    """Return the sharpness under which scores (Q, C) make the true classes (Q,) most likely."""
    rows = np.arange(len(classes))
    likelihoods = [np.log(softmax(s * scores)[rows, classes] + 1e-12).mean() for s in candidates]
    return float(candidates[int(np.argmax(likelihoods))])


def sigmoid(values: NDArray[Any]) -> Floats:
    """Turn log odds into probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -40, 40))), np.float64)


def log_odds(posteriors: NDArray[Any]) -> Floats:
    """Turn posteriors into log odds that are never infinite."""
    return np.asarray(np.log(posteriors + _SMOOTHING) - np.log(1 - posteriors + _SMOOTHING))


def fit_logistic(values: Floats, right: NDArray[Any], weights: Floats) -> tuple[float, ...]:
    """Fit a weighted logistic regression of outcomes (N,) on values (N, F): constant and slopes.

    A little ridge keeps the slopes finite where values separate the outcomes.
    """
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    table = np.concatenate([np.ones((len(values), 1)), (values - mean) / spread], axis=1)
    weights = weights * len(weights) / weights.sum()
    ridge = np.diag([1e-6] + [1.0] * values.shape[1])
    found = np.zeros(table.shape[1])
    for _ in range(50):  # Newton's method
        predicted = sigmoid(table @ found)
        gradient = table.T @ (weights * (right - predicted)) - ridge @ found
        hessian = (table * (weights * predicted * (1 - predicted))[:, None]).T @ table + ridge
        step = np.linalg.solve(hessian, gradient)
        found = found + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    slopes = found[1:] / spread
    return (float(found[0] - slopes @ mean), *(float(each) for each in slopes))


def find_cut_off(
    probabilities: Floats, right: NDArray[np.bool_], weights: Floats, error_rate: float
) -> float:
    """Return the lowest cut-off at which at most a share `error_rate` of the names is wrong."""
    order = np.argsort(-probabilities, kind="stable")
    total = np.cumsum(weights[order])
    wrong = np.cumsum(np.where(right[order], 0.0, weights[order]))
    # Equal probabilities pass together, or not at all.
    last = np.append(np.diff(probabilities[order]) != 0, True)
    good = np.flatnonzero(last & (wrong <= error_rate * total)) if len(order) else order
    return float(probabilities[order[good[-1]]]) if len(good) else NEVER


def ancestors(name: str, parents: Mapping[str, str]) -> list[str]:
    """Return the parent of a name, its parent, and so on; a cycle is followed once."""
    found: list[str] = []
    while name in parents and parents[name] not in found:
        name = parents[name]
        found.append(name)
    return found


def renamed_parents(parents: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the parents after labels were renamed, as in {old: new}, without cycles."""
    moved = {names[child]: up for child, up in parents.items() if child in names}
    moved |= {child: up for child, up in parents.items() if child not in names}
    return {child: up for child, up in moved.items() if child not in ancestors(up, moved)}


@dataclass(frozen=True, slots=True, eq=False)
class ParentLevel:
    """The ancestors of all classes, a number of steps up."""

    names: tuple[str, ...]  # a class without an ancestor at this level stands for itself
    numbers: IntArray  # (C,) the place among `names` of each class's ancestor
    is_parent: NDArray[np.bool_]  # which of `names` are parents, not classes

    def best_parent(
        self, posteriors: NDArray[Any], passing: IntArray | None = None
    ) -> tuple[Floats, IntArray]:
        """Return posterior and number of the likeliest parent, from class posteriors (Q, C).

        Only parents of the classes `passing` count; where there are none, these are 0 and -1.
        """
        count = len(self.names)
        sums = np.array([np.bincount(self.numbers, row, minlength=count) for row in posteriors])
        allowed = self.is_parent
        if passing is not None:
            allowed = allowed & (np.bincount(self.numbers[passing], minlength=count) > 0)
        if not len(sums) or not allowed.any():
            return np.zeros(len(posteriors)), np.full(len(posteriors), -1, np.int64)
        sums = np.where(allowed, sums, -1.0)
        return sums.max(axis=1), sums.argmax(axis=1).astype(np.int64)


def parent_levels(names: tuple[str, ...], parents: Mapping[str, str]) -> tuple[ParentLevel, ...]:
    """Return the levels above some classes, from one step up to the last."""
    return _parent_levels(names, tuple(parents.items())) if parents else ()


@lru_cache(maxsize=8)  # every search of a gallery has the same arguments
def _parent_levels(
    names: tuple[str, ...], pairs: tuple[tuple[str, str], ...]
) -> tuple[ParentLevel, ...]:
    parents = dict(pairs)
    all_parents = set(parents.values())
    lines = [[name, *ancestors(name, parents)] for name in names]
    found = []
    for level in range(1, max(map(len, lines), default=1)):
        own = [line[min(level, len(line) - 1)] for line in lines]
        groups = tuple(sorted(set(own)))
        places = {name: place for place, name in enumerate(groups)}
        numbers = np.array([places[name] for name in own], np.int64)
        is_parent = np.array([name in all_parents for name in groups])
        found.append(ParentLevel(groups, numbers, is_parent))
    return tuple(found)
