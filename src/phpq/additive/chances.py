"""What scores of classes tell: how likely a photo shows one of them at all, and which. Numpy.

    p(class)  = p(known) * share(class)
    p(parent) = p(known) * share(its classes) + (1 - p(known)) * kin(share(its classes))

Shares are a softmax of class scores. p(known) is a logistic function of three numbers: the best
score, the mean score, and the odds of the likeliest class. kin, another one, is the chance that a
photo of a class that the gallery lacks belongs to the parent that its looks speak for.

Probabilities are those of photos of which every second shows something that the gallery lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray, IntArray

Floats = NDArray[np.float64]
# Shares of wrong names that cut-offs are stored for; what lies between takes the one below.
ACCEPTED = (0.001, 0.002, 0.005, *(n / 100 for n in range(1, 51)))
NEVER = 2.0  # a cut-off that no probability reaches
_MOST_ODDS = 10.0  # of the likeliest class, as a logarithm; more says nothing more
_LEAST_SHARE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How class scores become probabilities, and which of these suffice for an answer."""

    weights: tuple[float, ...]  # of p(known): constant, best score, mean score, log odds
    kin: tuple[tuple[float, float], ...] = ()  # of each level of parents: constant and slope
    # For each level, from the classes up, and each of ACCEPTED.
    cut_offs: tuple[tuple[float, ...], ...]
    named: tuple[float, ...]  # for each of ACCEPTED: photos of known classes that get their class
    answered: tuple[float, ...]  # the same, that get any answer
    images: int  # that asked
    held_out: bool = False  # whether these were photos that the gallery does not hold

    def known(self, scores: NDArray[Any], sharpness: float) -> Floats:
        """Return how likely each photo shows one of the classes, (Q,), by class scores (Q, C)."""
        return sigmoid(looks(scores, sharpness) @ np.array(self.weights[1:]) + self.weights[0])

    def parent(self, level: int, known: Floats, share: Floats) -> Floats:
        """Return p(parent) (Q,) at a level from 1 on, by p(known) and the share of its classes."""
        if level > len(self.kin):  # of parents that came after the fit: what is sure at least
            return known * share
        constant, slope = self.kin[level - 1]
        return known * share + (1 - known) * sigmoid(constant + slope * log_odds(share))

    def cut_off(self, level: int, wrong_at_most: float) -> float:
        """Return the probability that a name of a level needs, for a share of wrong names."""
        if wrong_at_most > ACCEPTED[-1]:
            return 0.0 if level == 0 else NEVER
        place = int(np.searchsorted(ACCEPTED, wrong_at_most + 1e-9, side="right")) - 1
        if place < 0:
            return NEVER
        # Without a cut-off of its own a parent needs what a class needs.
        return self.cut_offs[level if level < len(self.cut_offs) else 0][place]

    def shares(self, wrong_at_most: float) -> tuple[float, float]:
        """Return how many photos of known classes get their class, and how many any answer."""
        place = int(np.searchsorted(ACCEPTED, wrong_at_most + 1e-9, side="right")) - 1
        return (self.named[place], self.answered[place]) if place >= 0 else (0.0, 0.0)

    def of_classes(self) -> Chances:
        """Return the same without parents, of which other ones are told from now on."""
        return replace(self, kin=(), cut_offs=self.cut_offs[:1], answered=self.named)

    def to_facts(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Chances:
        """Read what `to_facts` wrote."""
        rows = {name: tuple(tuple(row) for row in facts[name]) for name in ("kin", "cut_offs")}
        flat = {name: tuple(facts[name]) for name in ("weights", "named", "answered")}
        made = cls(**{**facts, **rows, **flat})
        good = len(made.weights) == 4 and made.cut_offs
        if not good or any(len(row) != len(ACCEPTED) for row in (*made.cut_offs, made.named)):
            raise ValueError("its probabilities do not fit together")
        return made


def told_shares(chances: Chances, wrong_at_most: float) -> dict[str, Any]:
    """Return what chances rest on, and how much they allow to answer, as commands tell it."""
    named, answered = chances.shares(wrong_at_most)
    return {
        "images": chances.images,
        "wrong_at_most": wrong_at_most,
        "named": named,  # share of photos of known kinds that get a kind
        "answered": answered,  # or a parent
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What turns scores of classes into answers: made once, kept in a small file."""

    sharpness: float = 1.0  # of shares, which are a softmax of class scores
    chances: Chances | None = None  # None: not known
    parents: Mapping[str, str] = field(default_factory=dict)  # what names belong to

    def to_facts(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "sharpness": self.sharpness,
            "chances": self.chances and self.chances.to_facts(),
            "parents": dict(sorted(self.parents.items())),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Calibration:
        """Read what `to_facts` wrote; a ValueError, KeyError or TypeError for anything else."""
        chances, parents = facts["chances"], facts["parents"]
        sharpness = float(facts["sharpness"])
        if not np.isfinite(sharpness) or not isinstance(parents, dict):
            raise ValueError("its values are not those of probabilities")
        return cls(
            sharpness=sharpness,
            chances=None if chances is None else Chances.from_facts(chances),
            parents=parents,
        )


def looks(scores: NDArray[Any], sharpness: float) -> Floats:
    """Return what p(known) depends on, (Q, 3); a class with a score of -inf is not there."""
    there = np.isfinite(scores)
    best = scores.max(axis=1).astype(np.float64)
    mean = np.where(there, scores, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    others = np.exp(sharpness * (scores - best[:, None])).sum(axis=1) - 1  # odds against the best
    odds = -np.log(np.clip(others, np.exp(-_MOST_ODDS), np.exp(_MOST_ODDS)))
    return np.stack([best, mean, odds], axis=1)


def softmax(scores: NDArray[Any]) -> FloatArray:
    """Turn scores (Q, C) into shares that sum to 1 for each query."""
    if not scores.shape[1]:
        return scores.astype(np.float32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: FloatArray = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def likeliest_factor(scores: NDArray[Any], classes: IntArray, factors: NDArray[Any]) -> float:
    """Return the factor of scores (Q, C) under which what they are of, (Q,), is most likely."""
    places = np.arange(len(classes))
    likely = [np.log(softmax(f * scores)[places, classes] + 1e-12).mean() for f in factors]
    return float(factors[int(np.argmax(likely))])


def sigmoid(values: NDArray[Any]) -> Floats:
    """Turn log odds into probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -40, 40))), np.float64)


def log_odds(shares: NDArray[Any]) -> Floats:
    """Turn shares into log odds that are never infinite."""
    return np.asarray(np.log(shares + _LEAST_SHARE) - np.log(1 - shares + _LEAST_SHARE))


def fit_logistic(values: Floats, right: NDArray[Any], weights: Floats) -> tuple[float, ...]:
    """Return constant and slopes under which outcomes (N,) of values (N, F) are most likely.

    Slopes are held back a little, so that they are finite where values tell the outcomes apart.
    """
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    table = np.concatenate([np.ones((len(values), 1)), (values - mean) / spread], axis=1)
    weights = weights * len(weights) / weights.sum()
    ridge = np.diag([1e-6] + [1.0] * values.shape[1])
    found = np.zeros(table.shape[1])
    for _ in range(50):
        chance = sigmoid(table @ found)
        slope = table.T @ (weights * (right - chance)) - ridge @ found
        bend = (table * (weights * chance * (1 - chance))[:, None]).T @ table + ridge
        step = np.linalg.solve(bend, slope)
        found = found + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    slopes = found[1:] / spread
    return (float(found[0] - slopes @ mean), *(float(each) for each in slopes))


def cut_off_at(
    chances: Floats, right: NDArray[np.bool_], weights: Floats, accepted: float
) -> float:
    """Return the lowest chance from which on at most a share `accepted` of the names is wrong."""
    order = np.argsort(-chances, kind="stable")
    total = np.cumsum(weights[order])
    wrong = np.cumsum(np.where(right[order], 0.0, weights[order]))
    # Equal chances are taken together, or not at all.
    last = np.append(np.diff(chances[order]) != 0, True)
    good = np.flatnonzero(last & (wrong <= accepted * total)) if len(order) else order
    return float(chances[order[good[-1]]]) if len(good) else NEVER


def lineage(name: str, parents: Mapping[str, str]) -> list[str]:
    """Return what a name belongs to, step by step; a circle is gone through once."""
    found: list[str] = []
    while name in parents and parents[name] not in found:
        name = parents[name]
        found.append(name)
    return found


def renamed_parents(parents: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return what names belong to after some were renamed, as in {old: new}; no circle is left."""
    moved = {names[child]: up for child, up in parents.items() if child in names}
    moved |= {child: up for child, up in parents.items() if child not in names}
    return {child: up for child, up in moved.items() if child not in lineage(up, moved)}


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What classes belong to, one or more steps up."""

    names: tuple[str, ...]  # of what they belong to; a class that belongs to nothing is its own
    numbers: IntArray  # (C,) which of these each class belongs to
    real: NDArray[np.bool_]  # which of these are parents of something

    def likeliest(
        self, shares: NDArray[Any], passing: IntArray | None = None
    ) -> tuple[Floats, IntArray]:
        """Return by shares (Q, C) of classes the share of the likeliest parent, and its number.

        Of those to which a class of `passing` belongs; where there is none, share and number are 0
        and -1.
        """
        count = len(self.names)
        sums = np.array([np.bincount(self.numbers, row, minlength=count) for row in shares])
        there = self.real
        if passing is not None:
            there = there & (np.bincount(self.numbers[passing], minlength=count) > 0)
        if not len(sums) or not there.any():
            return np.zeros(len(shares)), np.full(len(shares), -1, np.int64)
        sums = np.where(there, sums, -1.0)
        return sums.max(axis=1), sums.argmax(axis=1).astype(np.int64)


def levels(names: tuple[str, ...], parents: Mapping[str, str]) -> tuple[Level, ...]:
    """Return what names belong to, from one step up to the last."""
    return _levels(names, tuple(parents.items())) if parents else ()


@lru_cache(maxsize=8)  # every search asks for the same
def _levels(names: tuple[str, ...], pairs: tuple[tuple[str, str], ...]) -> tuple[Level, ...]:
    parents = dict(pairs)
    above = set(parents.values())
    lines = [[name, *lineage(name, parents)] for name in names]
    found = []
    for level in range(1, max(map(len, lines), default=1)):
        own = [line[min(level, len(line) - 1)] for line in lines]
        groups = tuple(sorted(set(own)))
        places = {name: place for place, name in enumerate(groups)}
        numbers = np.array([places[name] for name in own], np.int64)
        found.append(Level(groups, numbers, np.array([name in above for name in groups])))
    return tuple(found)
