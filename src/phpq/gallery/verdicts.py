"""What a gallery predicts for a photo: queries and a filter in, kinds, probabilities, a name out.

A gallery that owns its codebooks has classes in them. One with the codebooks of its model needs a
calibration: fitted to photos for this gallery, or to held-out images when the model was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from phpq.additive import (
    Calibration,
    CodeClassifier,
    ProbabilityModel,
    code_prototypes,
    number_labels,
    parent_levels,
    softmax,
)
from phpq.codes import Codebooks, FloatArray, IntArray
from phpq.gallery.models import model_calibration
from phpq.gallery.owned import read_calibration
from phpq.hits import SHOWN_KINDS, Kinds, Sure

if TYPE_CHECKING:
    from phpq.gallery.shards import LabelCodewords
    from phpq.gallery.store import GalleryStore

_MAX_VALUES = 1 << 25  # of prototypes, (labels, D): 20,000 labels of 1,536 numbers, 128 MB
_HELP = "phpq gallery calibrate does that with labelled photos"
_MIN_LEARNED = 0.5  # share of labelled images of learned classes; below, the model's does not hold


class Classifier(Protocol):
    """Scores the classes of a gallery, and may have a calibration of these scores."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels."""

    @property
    def sharpness(self) -> float:
        """Inverse temperature of the softmax over class scores."""

    @property
    def probabilities(self) -> ProbabilityModel | None:
        """None where they were not fitted."""

    @property
    def parents(self) -> Mapping[str, str]:
        """Label or parent to its parent."""

    def class_scores(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C), higher is better."""


@dataclass(frozen=True, slots=True)
class FoundCalibration:
    """The calibration that holds for a gallery with the codebooks of its model."""

    calibration: Calibration  # its parents hold even if there are no probabilities
    by: Literal["photos", "model"] | None  # what it was fitted to; None: no probabilities
    why_not: str = ""


def find_calibration(
    store: GalleryStore, label_counts: Callable[[], Mapping[str, int]]
) -> FoundCalibration:
    """Return the calibration of a version; labels are counted only if they matter.

    One fitted for the gallery itself wins. That of the model holds for classes that the model
    learned: scores of other classes are distributed differently.
    """
    found, manifest = read_calibration(store.folder, store.manifest), store.manifest
    by: Literal["photos", "model"] = "photos"
    counts: Mapping[str, int] = {}
    if found.probabilities is None:
        of_model = model_calibration(store.folder, manifest)
        if of_model is None:
            why_not = f"neither the model nor the gallery was fitted; {_HELP}"
            return FoundCalibration(found, None, why_not)
        counts = label_counts()
        learned = sum(count for name, count in counts.items() if name in of_model[1])
        if learned < _MIN_LEARNED * sum(counts.values()):
            why_not = f"most images are of kinds the model never learned; {_HELP}"
            return FoundCalibration(found, None, why_not)
        found, by = replace(of_model[0], parents=found.parents), "model"
    counts = counts or label_counts()
    if len(counts) * manifest.embedding_dim > _MAX_VALUES:
        why_not = f"{len(counts):,} labels are too many to compare with each"
        return FoundCalibration(Calibration(parents=found.parents), None, why_not)
    return FoundCalibration(found, by)


def find_classifier(
    store: GalleryStore,
    books: Codebooks,
    label_counts: Callable[[], Mapping[str, int]],
    codewords: Callable[[], Sequence[LabelCodewords]],
) -> CodeClassifier | None:
    """Return the classifier of a gallery with its model's codebooks; None if not calibrated.

    `codewords` counts the codewords of every label, in each shard.
    """
    found = find_calibration(store, label_counts).calibration
    if found.probabilities is None:
        return None
    parts = codewords()
    names = tuple(sorted({name for part in parts for name in part.label_names}))
    placed = [(number_labels(part.label_names, names), part.counts) for part in parts]
    means = code_prototypes(books, placed, len(names))
    fitted = (found.sharpness, found.probabilities, found.parents)
    return CodeClassifier(books, store.manifest.query_norm, names, means, *fitted)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What one query shows; empty without a classifier."""

    kinds: Kinds | None = None  # the likeliest that pass the filter; None without a classifier
    known: float | None = None  # the probability that it is one of the kinds that pass
    sure: Sure | None = None
    _posteriors: FloatArray | None = None  # (P,) of the kinds that pass
    _places: Mapping[str, int] | None = None  # of labels among these

    def probability(self, label: str | None) -> float | None:
        """Return the probability that the query shows a label; None if not known."""
        if self.known is None or self._posteriors is None or self._places is None:
            return None
        place = None if label is None else self._places.get(label)
        return None if place is None else self.known * float(self._posteriors[place])


def predict(
    books: Classifier, queries: FloatArray, passing: IntArray, wrong_at_most: float | None
) -> list[Prediction]:
    """Predict what (Q, D) queries show, among the classes (P,) of images that pass a filter.

    `wrong_at_most` None leaves probabilities out: they do not hold for images of the gallery.
    """
    scores = books.class_scores(queries)
    # A softmax of their own: their posteriors among all classes might all round to zero.
    passing_posteriors = softmax(books.sharpness * scores[:, passing])
    names = [books.class_names[place] for place in passing.tolist()]
    kinds = [_likeliest(row, names) for row in passing_posteriors]
    fitted = books.probabilities
    if fitted is None or wrong_at_most is None or not len(passing):
        return [Prediction(each) for each in kinds]
    posteriors = softmax(books.sharpness * scores)
    any_known = fitted.known(scores, books.sharpness)
    known = any_known * posteriors[:, passing].sum(axis=1, dtype=np.float64)
    best = known * passing_posteriors.max(axis=1)
    # Per level the probability and the name of its best answer to each query.
    answers = [(best, [names[place] for place in passing_posteriors.argmax(axis=1).tolist()])]
    for number, level in enumerate(parent_levels(books.class_names, books.parents), start=1):
        posterior, parents = level.best_parent(posteriors, passing)
        probability = np.where(parents < 0, -1.0, fitted.parent(number, any_known, posterior))
        answers.append((probability, [level.names[parent] for parent in parents.tolist()]))
    cut_offs = [fitted.cut_off(number, wrong_at_most) for number in range(len(answers))]
    places = {name: place for place, name in enumerate(names)}
    predictions = []
    for row, likeliest in enumerate(kinds):
        sure = Sure(None, None, float(best[row]), wrong_at_most)
        for number, (probability, labels) in enumerate(answers):
            if probability[row] >= cut_offs[number]:
                sure = Sure(labels[row], number, min(float(probability[row]), 1.0), wrong_at_most)
                break
        p_known = min(float(known[row]), 1.0)
        predictions.append(Prediction(likeliest, p_known, sure, passing_posteriors[row], places))
    return predictions


def _likeliest(posteriors: FloatArray, names: list[str]) -> Kinds:
    few = np.argpartition(-posteriors, min(SHOWN_KINDS, len(posteriors)) - 1)[:SHOWN_KINDS]
    best = few[np.lexsort((few, -posteriors[few]))].tolist() if len(posteriors) else []
    return tuple((names[place], float(posteriors[place])) for place in best)
