"""Fits what a gallery knows of its own doubt: codebooks and rows in, codebooks with `Chances` out.

A row that was fitted to says nothing about a photo to come: it lies at its class because it helped
to turn the space so that it does. So rows ask in spaces that are fitted without them, and, for what
the gallery does not know, without their whole class; each fold leaves out a part of both. Held-out
photos, where there are some, ask in their place: of images that the *model* learned from too, only
these are honest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phpq.additive.chances import (
    ACCEPTED,
    Chances,
    Floats,
    cut_off_at,
    fit_logistic,
    levels,
    likeliest_factor,
    log_odds,
    looks,
    softmax,
)
from phpq.additive.codebooks import (
    AdditiveCodebooks,
    Labels,
    cohesion,
    number_labels,
    prototypes,
    unit_rows,
)
from phpq.additive.fit import DIMS, projection_of
from phpq.additive.kinds import CodeKinds
from phpq.codes import FloatArray, IntArray, check_embeddings

LEAST_IMAGES, LEAST_KINDS = 100, 5  # of kinds with two images at least; of fewer nothing is told
_FOLDS = 5
_ROWS = 10_000  # that are looked at
_SCORES = 20_000_000  # of classes
_SHARPENED = 4_000_000  # scores that the sharpness of codes is chosen by: each is looked at often
_SHARPNESS = np.geomspace(2, 128, 61)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Photos that asked: their scores (n, C), -inf for classes that were left out, and classes."""

    scores: FloatArray
    classes: IntArray  # (n,), -1 for one that the gallery never knew


HeldOut = tuple[FloatArray, Labels]  # embeddings (H, D) of photos, and what they show


def calibrated(
    books: AdditiveCodebooks,
    embeddings: FloatArray,
    labels: Labels,
    held_out: HeldOut | None = None,
) -> AdditiveCodebooks:
    """Return codebooks that know how likely their answers are, by rows (N, D) of the gallery.

    Without classes, or with too few images to tell, they do not.
    """
    rows = check_embeddings("embeddings", embeddings, books.embedding_dim)
    classes = number_labels(labels, books.class_names)
    rows, classes = _sample(rows, classes, len(books.class_names))
    if held_out is None:
        known, unknown = _by_folds(rows, classes, books)
    else:
        known, unknown = _by_photos(rows, classes, books, held_out)
    if not _suffice(known, unknown):
        return replace(books, chances=None)
    sharpness = likeliest_factor(known.scores, known.classes, _SHARPNESS)
    chances = _chances(known, unknown, sharpness, books)
    chances = replace(chances, held_out=held_out is not None)
    return replace(books, sharpness=sharpness, chances=chances)


def calibrated_codes(kinds: CodeKinds, held_out: HeldOut) -> CodeKinds:
    """Return kinds by the codes of a model that know how likely their answers are.

    Photos of other classes show what is not known. Where these are too few, each photo also asks
    without its own class: kinder than life if the model learned that class, and so tells it apart.
    Nothing was fitted to the codes here, so that no space has to be made without a class.
    """
    photos = check_embeddings("held_out", held_out[0], kinds.books.embedding_dim)
    shown = number_labels(held_out[1], kinds.class_names)
    labelled = np.flatnonzero([name is not None for name in held_out[1]])
    most = min(_ROWS, _SCORES // max(len(kinds.class_names), 1))
    if len(labelled) > most:
        labelled = np.sort(np.random.default_rng(0).permutation(labelled)[:most])
    photos, shown = photos[labelled], shown[labelled]
    scores, strange = kinds.kinds(photos), shown < 0
    known = _Asked(scores[~strange], shown[~strange])
    unknown = _Asked(scores[strange], shown[strange])
    without_own = len(unknown.scores) < LEAST_IMAGES
    if without_own:
        left_out = known.scores.copy()
        left_out[np.arange(len(left_out)), known.classes] = -np.inf
        unknown = _joined([unknown, _Asked(left_out, known.classes)], len(kinds.class_names))
    if not _suffice(known, unknown):
        return replace(kinds, chances=None)
    # Scores of codes have no length of their own: it depends on codebooks and on how queries ask.
    length = max(float(known.scores.max(axis=1).mean()), 1e-9)
    every = 1 + known.scores.size // _SHARPENED
    some, shown = known.scores[::every], known.classes[::every]
    sharpness = likeliest_factor(some, shown, _SHARPNESS / length)
    # A mean that lacks the own class is lower for that alone, whatever the photo shows.
    chances = _chances(known, unknown, sharpness, kinds, by_mean=not without_own)
    return replace(kinds, sharpness=sharpness, chances=replace(chances, held_out=True))


def _suffice(known: _Asked, unknown: _Asked) -> bool:
    """Say whether photos are enough to tell anything by."""
    enough = len(known.scores) >= LEAST_IMAGES and len(unknown.scores) >= LEAST_IMAGES
    return enough and len(np.unique(known.classes)) >= LEAST_KINDS


def _sample(rows: FloatArray, classes: IntArray, count: int) -> tuple[FloatArray, IntArray]:
    """Return labelled rows, at most as many as can be looked at, and their classes."""
    inside = np.flatnonzero(classes >= 0)
    most = min(_ROWS, _SCORES // max(count, 1))
    if len(inside) > most:
        inside = np.sort(np.random.default_rng(0).permutation(inside)[:most])
    return rows[inside], classes[inside]


def _by_folds(
    rows: FloatArray, classes: IntArray, books: AdditiveCodebooks
) -> tuple[_Asked, _Asked]:
    """Let rows ask in spaces that were fitted without them, or without their classes."""
    generator = np.random.default_rng(0)
    row_fold = np.empty(len(rows), np.int64)
    for number in np.unique(classes):
        mine = generator.permutation(np.flatnonzero(classes == number))
        row_fold[mine] = (np.arange(len(mine)) + generator.integers(_FOLDS)) % _FOLDS
    known, unknown = [], []
    for fold, absent in enumerate(_class_folds(len(books.class_names), generator)):
        kept = (row_fold != fold) & ~absent[classes]
        there = np.bincount(classes[kept], minlength=len(absent)) > 0
        score = _space(rows[kept], classes[kept], there, books)
        asking = (row_fold == fold) & there[classes]
        if score is not None:
            known.append(_Asked(score(rows[asking]), classes[asking]))
            unknown.append(_Asked(score(rows[absent[classes]]), classes[absent[classes]]))
    count = len(books.class_names)
    return _joined(known, count), _joined(unknown, count)


def _by_photos(
    rows: FloatArray, classes: IntArray, books: AdditiveCodebooks, held_out: HeldOut
) -> tuple[_Asked, _Asked]:
    """Let photos ask the codebooks, and spaces that were fitted without their classes."""
    photos, labels = check_embeddings("held_out", held_out[0], books.embedding_dim), held_out[1]
    shown = number_labels(labels, books.class_names)
    strange = np.array([name is not None for name in labels], np.bool_) & (shown < 0)
    known = [_Asked(books.kinds(photos[shown >= 0]), shown[shown >= 0])]
    unknown = [_Asked(books.kinds(photos[strange]), shown[strange])]
    for absent in _class_folds(len(books.class_names), np.random.default_rng(0)):
        kept = ~absent[classes]
        there = np.bincount(classes[kept], minlength=len(absent)) > 0
        score = _space(rows[kept], classes[kept], there, books)
        asking = (shown >= 0) & absent[shown]
        if score is not None:
            unknown.append(_Asked(score(photos[asking]), shown[asking]))
    count = len(books.class_names)
    return _joined(known, count), _joined(unknown, count)


def _class_folds(count: int, generator: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield for each fold which classes (C,) it leaves out."""
    folds = generator.permutation(count) % _FOLDS
    yield from (folds == fold for fold in range(_FOLDS))


class _Space:
    """A projection and prototypes that were fitted to some rows and classes."""

    def __init__(
        self, rows: FloatArray, classes: IntArray, there: NDArray[np.bool_], dims: int
    ) -> None:
        places = np.cumsum(there) - 1  # of the classes that are there
        self._there, numbers = there, places[classes]
        self._mean, self._projection = projection_of(rows, numbers, dims)
        own, count = self._vectors(rows), int(there.sum())
        near, _ = cohesion(own, numbers, count)
        typical = max(float(near.mean()), 1e-3) if len(near) else 1.0
        self._means = prototypes(own, numbers, count, typical)

    def __call__(self, rows: FloatArray) -> FloatArray:
        scores = np.full((len(rows), len(self._there)), -np.inf, np.float32)
        scores[:, self._there] = self._vectors(rows) @ self._means.T
        return scores

    def _vectors(self, rows: FloatArray) -> FloatArray:
        return unit_rows(((rows - self._mean) @ self._projection).astype(np.float32))


def _space(
    rows: FloatArray, classes: IntArray, there: NDArray[np.bool_], books: AdditiveCodebooks
) -> _Space | None:
    if there.sum() < 2:
        return None
    return _Space(rows, classes, there, min(DIMS, books.sub_dim))


def _joined(parts: list[_Asked], count: int) -> _Asked:
    scores = [np.empty((0, count), np.float32), *(part.scores for part in parts)]
    classes = [np.empty(0, np.int64), *(part.classes for part in parts)]
    return _Asked(np.concatenate(scores), np.concatenate(classes))


def _chances(
    known: _Asked,
    unknown: _Asked,
    sharpness: float,
    books: AdditiveCodebooks | CodeKinds,
    *,
    by_mean: bool = True,
) -> Chances:
    """Fit p(known), what it tells of parents, and the cut-offs of all levels."""
    scores = np.concatenate([known.scores, unknown.scores])
    classes = np.concatenate([known.classes, unknown.classes])
    is_known = np.arange(len(scores)) < len(known.scores)
    # As if every second photo showed something unknown.
    weights = np.where(is_known, 1 / len(known.scores), 1 / len(unknown.scores))
    seen = looks(scores, sharpness) * (1.0, float(by_mean), 1.0)
    fitted = fit_logistic(seen, is_known, weights)
    blank = (0.0,) * len(ACCEPTED)
    chances = Chances(
        weights=fitted, cut_offs=(blank,), named=blank, answered=blank, images=len(known.scores)
    )
    sure = chances.known(scores, sharpness)
    shares = softmax(sharpness * scores)
    answers = [(sure * shares.max(axis=1), is_known & (shares.argmax(axis=1) == classes))]
    for level, above in enumerate(levels(books.class_names, books.parents), start=1):
        best, parents = above.likeliest(shares)
        right = (classes >= 0) & (parents == above.numbers[classes])
        odds = log_odds(best[~is_known])[:, None]
        constant, slope = fit_logistic(odds, right[~is_known], weights[~is_known])
        chances = replace(chances, kin=(*chances.kin, (constant, slope)))
        answers.append((chances.parent(level, sure, best), right))
    return _with_cut_offs(chances, answers, weights, is_known)


def _with_cut_offs(
    chances: Chances,
    answers: list[tuple[Floats, NDArray[np.bool_]]],
    weights: Floats,
    is_known: NDArray[np.bool_],
) -> Chances:
    """Choose cut-offs from the classes up: each level answers what is left over by those below."""
    table: list[list[float]] = [[] for _ in answers]
    named, answered = [], []
    for accepted in ACCEPTED:
        open_ones = np.ones(len(weights), np.bool_)
        for level, (chance, right) in enumerate(answers):
            left = np.flatnonzero(open_ones)
            cut = cut_off_at(chance[left], right[left], weights[left], accepted)
            table[level].append(round(cut, 6))
            open_ones &= chance < cut
            if not level:
                named.append(round(float((~open_ones)[is_known].mean()), 4))
        answered.append(round(float((~open_ones)[is_known].mean()), 4))
    cut_offs = tuple(tuple(row) for row in table)
    return replace(chances, cut_offs=cut_offs, named=tuple(named), answered=tuple(answered))
