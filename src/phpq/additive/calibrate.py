"""Fits the probabilities of a gallery's answers: classes and images in, the same calibrated out.

Rows that codebooks were fitted to are no fair queries: the projection was chosen so that they lie
at their classes. So rows are scored in projections fitted without them and, as queries of unknown
classes, without their whole class; each fold leaves out a part of both. Where classes have parents,
other folds leave out whole parents: an unknown photo may have no relatives in the gallery. Held-out
photos, if given, replace the rows. Nothing else is fair where the *model* learned from images of
the gallery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phpq.additive.classifier import CodeClassifier
from phpq.additive.codebooks import (
    AdditiveCodebooks,
    Labels,
    fit_prototypes,
    number_labels,
    unit_rows,
)
from phpq.additive.fit import DIMS, fit_projection
from phpq.additive.probabilities import (
    ERROR_RATES,
    Floats,
    ProbabilityModel,
    find_cut_off,
    fit_logistic,
    fit_sharpness,
    log_odds,
    open_set_features,
    parent_levels,
    softmax,
)
from phpq.codes import FloatArray, IntArray, check_embeddings

MIN_IMAGES, MIN_CLASSES = 100, 5  # for a fit; of classes with at least two images
_FOLDS = 5
_MAX_QUERIES = 10_000
_MAX_SCORES = 20_000_000  # queries times classes
_SHARPNESS_SCORES = 4_000_000  # that the sharpness of codes is fitted to, once per candidate
_SHARPNESS = np.geomspace(2, 128, 61)

HeldOut = tuple[FloatArray, Labels]  # embeddings (H, D) of photos, and their labels
_Scored = tuple[FloatArray, IntArray]  # as in `_QueryScores`


@dataclass(frozen=True, slots=True, eq=False)
class _QueryScores:
    """Class scores of some queries, and their true classes."""

    scores: FloatArray  # (n, C), -inf for classes left out
    classes: IntArray  # (n,), -1 for a class outside the gallery
    weights: Floats  # (n,), of sum 1


def calibrate_additive(
    books: AdditiveCodebooks,
    embeddings: FloatArray,
    labels: Labels,
    held_out: HeldOut | None = None,
) -> AdditiveCodebooks:
    """Return codebooks with probabilities fitted to rows (N, D) of the gallery, or to photos.

    They have none where there are too few images or classes.
    """
    rows = check_embeddings("embeddings", embeddings, books.embedding_dim)
    classes = number_labels(labels, books.class_names)
    chosen = _subsample(np.flatnonzero(classes >= 0), len(books.class_names))
    rows, classes = rows[chosen], classes[chosen]
    if held_out is None:
        known, unknown = _score_folds(rows, classes, books)
    else:
        known, unknown = _score_photos(rows, classes, books, held_out)
    if not _suffice(known, unknown):
        return replace(books, probabilities=None)
    sharpness = fit_sharpness(known.scores, known.classes, _SHARPNESS)
    fitted = _fit_probabilities(known, unknown, sharpness, books)
    fitted = replace(fitted, held_out=held_out is not None)
    return replace(books, sharpness=sharpness, probabilities=fitted)


def calibrate_codes(classifier: CodeClassifier, held_out: HeldOut) -> CodeClassifier:
    """Return a classifier over a model's codes with probabilities fitted to photos.

    Photos of other classes stand for the unknown. Where these are too few, each photo is also
    scored without its own class. That is optimistic if the model learned the class, since it then
    separates it better. The codes were not fitted to the photos, so that no folds are needed.
    """
    photos = check_embeddings("held_out", held_out[0], classifier.books.embedding_dim)
    classes = number_labels(held_out[1], classifier.class_names)
    labelled = np.flatnonzero([name is not None for name in held_out[1]])
    chosen = _subsample(labelled, len(classifier.class_names))
    photos, classes = photos[chosen], classes[chosen]
    scores, outside = classifier.class_scores(photos), classes < 0
    count = len(classifier.class_names)
    known = _joined([(scores[~outside], classes[~outside])], count)
    others = (scores[outside], classes[outside])
    unknown = _joined([others], count)
    without_own = len(unknown.scores) < MIN_IMAGES
    if without_own:
        left_out = [[_without_own(known, groups)] for groups in _groupings(classifier)]
        unknown = _mixed([[others, *left_out[0]], *left_out[1:]], count)
    if not _suffice(known, unknown):
        return replace(classifier, probabilities=None)
    # The scale of these scores depends on the codebooks and on the norm of queries.
    scale = max(float(known.scores.max(axis=1).mean()), 1e-9)
    some = slice(None, None, 1 + known.scores.size // _SHARPNESS_SCORES)
    sharpness = fit_sharpness(known.scores[some], known.classes[some], _SHARPNESS / scale)
    # Without the own class the mean score is lower whatever the photo shows: not a fair feature.
    fitted = _fit_probabilities(known, unknown, sharpness, classifier, use_mean=not without_own)
    return replace(classifier, sharpness=sharpness, probabilities=replace(fitted, held_out=True))


def _without_own(known: _QueryScores, groups: IntArray) -> _Scored:
    """Return queries that are scored without their own group of classes (C,), if others remain."""
    own = groups == groups[known.classes][:, None]
    scores = np.where(own, -np.inf, known.scores).astype(np.float32)
    left = ~own.all(axis=1)
    return scores[left], known.classes[left]


def _suffice(known: _QueryScores, unknown: _QueryScores) -> bool:
    """Say whether there are enough queries for a fit."""
    enough = len(known.scores) >= MIN_IMAGES and len(unknown.scores) >= MIN_IMAGES
    return enough and len(np.unique(known.classes)) >= MIN_CLASSES


def _subsample(rows: IntArray, num_classes: int) -> IntArray:
    """Return the rows (n,), or a random sample of them, ascending, that bounds time and memory."""
    most = min(_MAX_QUERIES, _MAX_SCORES // max(num_classes, 1))
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).permutation(rows)[:most])


def _score_folds(
    rows: FloatArray, classes: IntArray, books: AdditiveCodebooks
) -> tuple[_QueryScores, _QueryScores]:
    """Score rows in projections that were fitted without them, or without their classes."""
    generator = np.random.default_rng(0)
    row_fold = np.empty(len(rows), np.int64)
    for number in np.unique(classes):
        mine = generator.permutation(np.flatnonzero(classes == number))
        row_fold[mine] = (np.arange(len(mine)) + generator.integers(_FOLDS)) % _FOLDS
    known: list[_Scored] = []
    unknown: list[list[_Scored]] = []
    for level, groups in enumerate(_groupings(books)):
        unknown.append([])
        for fold, left_out in enumerate(_class_folds(groups, generator)):
            absent = left_out[classes]
            scorer = _FoldScorer.fit(rows, classes, (row_fold != fold) & ~absent, books)
            if scorer is None:
                continue
            held = (row_fold == fold) & scorer.fitted[classes]
            if level == 0:
                known.append((scorer.scores(rows[held]), classes[held]))
            unknown[level].append((scorer.scores(rows[absent]), classes[absent]))
    count = len(books.class_names)
    return _joined(known, count), _mixed(unknown, count)


def _score_photos(
    rows: FloatArray, classes: IntArray, books: AdditiveCodebooks, held_out: HeldOut
) -> tuple[_QueryScores, _QueryScores]:
    """Score photos by the codebooks, and in projections that were fitted without their classes."""
    photos, labels = check_embeddings("held_out", held_out[0], books.embedding_dim), held_out[1]
    labelled = np.flatnonzero([name is not None for name in labels])
    chosen = _subsample(labelled, len(books.class_names))
    photos, shown = photos[chosen], number_labels(labels, books.class_names)[chosen]
    outside = shown < 0
    known = [(books.class_scores(photos[shown >= 0]), shown[shown >= 0])]
    unknown: list[list[_Scored]] = []
    generator = np.random.default_rng(0)
    for groups in _groupings(books):
        unknown.append([])
        for left_out in _class_folds(groups, generator):
            scorer = _FoldScorer.fit(rows, classes, ~left_out[classes], books)
            absent = (shown >= 0) & left_out[shown]
            if scorer is not None:
                unknown[-1].append((scorer.scores(photos[absent]), shown[absent]))
    unknown[0].append((books.class_scores(photos[outside]), shown[outside]))
    count = len(books.class_names)
    return _joined(known, count), _mixed(unknown, count)


def _groupings(books: AdditiveCodebooks | CodeClassifier) -> list[IntArray]:
    """Return what may be missing from a gallery: a class, or all of its parent at each level.

    Each is the number (C,) of the group of every class.
    """
    parents = parent_levels(books.class_names, books.parents)
    return [np.arange(len(books.class_names)), *(level.numbers for level in parents)]


def _class_folds(groups: IntArray, generator: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield for each fold which classes (C,) it leaves out: whole groups (C,) of them."""
    folds = generator.permutation(groups.max(initial=-1) + 1) % _FOLDS
    yield from (folds[groups] == fold for fold in range(_FOLDS))


@dataclass(frozen=True, slots=True, eq=False)
class _FoldScorer:
    """A projection and prototypes that were fitted to some rows."""

    fitted: NDArray[np.bool_]  # (C,) the classes of these rows; only they are scored
    mean: FloatArray
    projection: FloatArray
    prototypes: FloatArray

    @classmethod
    def fit(
        cls, rows: FloatArray, classes: IntArray, kept: NDArray[np.bool_], books: AdditiveCodebooks
    ) -> _FoldScorer | None:
        """Fit to the rows (N, D) that are `kept` (N,); None if they have fewer than two classes."""
        rows, classes = rows[kept], classes[kept]
        fitted = np.bincount(classes, minlength=len(books.class_names)) > 0
        if fitted.sum() < 2:
            return None
        numbers = (np.cumsum(fitted) - 1)[classes]
        mean, projection = fit_projection(rows, numbers, min(DIMS, books.sub_dim))
        vectors = _project(rows, mean, projection)
        prototypes, _ = fit_prototypes(vectors, numbers, int(fitted.sum()))
        return cls(fitted, mean, projection, prototypes)

    def scores(self, rows: FloatArray) -> FloatArray:
        """Score all classes against rows (n, D): (n, C), -inf for those without a row."""
        scores = np.full((len(rows), len(self.fitted)), -np.inf, np.float32)
        scores[:, self.fitted] = _project(rows, self.mean, self.projection) @ self.prototypes.T
        return scores


def _project(rows: FloatArray, mean: FloatArray, projection: FloatArray) -> FloatArray:
    return unit_rows(((rows - mean) @ projection).astype(np.float32))


def _joined(parts: list[_Scored], count: int) -> _QueryScores:
    """Put queries together, each of the same weight."""
    scores = np.concatenate([np.empty((0, count), np.float32), *(part[0] for part in parts)])
    classes = np.concatenate([np.empty(0, np.int64), *(part[1] for part in parts)])
    return _QueryScores(scores, classes, np.full(len(scores), 1 / max(len(scores), 1)))


def _mixed(groupings: list[list[_Scored]], count: int) -> _QueryScores:
    """Put queries of unknown classes together, with the same weight for each grouping.

    Nobody knows whether an unknown photo has relatives in the gallery. Were only single classes
    left out, it always had, and its parent would be named too often.
    """
    levels = [level for parts in groupings if len((level := _joined(parts, count)).scores)]
    if not levels:
        return _joined([], count)
    return _QueryScores(
        np.concatenate([level.scores for level in levels]),
        np.concatenate([level.classes for level in levels]),
        np.concatenate([level.weights for level in levels]) / len(levels),
    )


def _fit_probabilities(
    known: _QueryScores,
    unknown: _QueryScores,
    sharpness: float,
    books: AdditiveCodebooks | CodeClassifier,
    *,
    use_mean: bool = True,
) -> ProbabilityModel:
    """Fit p(known), the probabilities of parents, and the cut-offs of all levels."""
    scores = np.concatenate([known.scores, unknown.scores])
    classes = np.concatenate([known.classes, unknown.classes])
    is_known = np.arange(len(scores)) < len(known.scores)
    # As if half of the photos showed something unknown.
    weights = np.concatenate([known.weights, unknown.weights])
    features = open_set_features(scores, sharpness) * (1.0, float(use_mean), 1.0)
    blank = (0.0,) * len(ERROR_RATES)
    fitted = ProbabilityModel(
        weights=fit_logistic(features, is_known, weights),
        cut_offs=(blank,),
        named=blank,
        answered=blank,
        images=len(known.scores),
    )
    p_known = fitted.known(scores, sharpness)
    posteriors = softmax(sharpness * scores)
    is_right = is_known & (posteriors.argmax(axis=1) == classes)
    answers = [(p_known * posteriors.max(axis=1), is_right)]
    for number, level in enumerate(parent_levels(books.class_names, books.parents), start=1):
        best, parents = level.best_parent(posteriors)
        is_right = (classes >= 0) & (parents == level.numbers[classes])
        odds = log_odds(best[~is_known])[:, None]
        constant, slope = fit_logistic(odds, is_right[~is_known], weights[~is_known])
        fitted = replace(fitted, parent_weights=(*fitted.parent_weights, (constant, slope)))
        answers.append((fitted.parent(number, p_known, best), is_right))
    return _with_cut_offs(fitted, answers, weights, is_known)


def _with_cut_offs(
    fitted: ProbabilityModel,
    answers: list[tuple[Floats, NDArray[np.bool_]]],
    weights: Floats,
    is_known: NDArray[np.bool_],
) -> ProbabilityModel:
    """Choose cut-offs from the classes up: each level answers what those below leave open.

    `answers` holds for each level the probabilities (n,) of its names, and which are right.
    """
    table: list[list[float]] = [[] for _ in answers]
    named, answered = [], []
    for rate in ERROR_RATES:
        is_open = np.ones(len(weights), np.bool_)
        for level, (probability, is_right) in enumerate(answers):
            left = np.flatnonzero(is_open)
            cut = find_cut_off(probability[left], is_right[left], weights[left], rate)
            table[level].append(round(cut, 6))
            is_open &= probability < cut
            if not level:
                named.append(round(float((~is_open)[is_known].mean()), 4))
        answered.append(round(float((~is_open)[is_known].mean()), 4))
    cut_offs = tuple(tuple(row) for row in table)
    return replace(fitted, cut_offs=cut_offs, named=tuple(named), answered=tuple(answered))
