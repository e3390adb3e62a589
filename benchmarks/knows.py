"""Does a gallery know what it does not know? A run that learned half of the classes in, tables out.

    python benchmarks/knows.py --run RUN --data cub200 --json docs/results/knows.json

The gallery holds the training images of the learned classes, in its own codebooks. Test images of
all classes ask, those of learned and of other classes weighed alike. Probabilities are fitted once
to the gallery's own images, once to half of the test images of learned classes; everything is
measured on the other half and on all of the other classes, to which nothing was fitted. Families
are the last words of the class names.

`--codebooks model` measures the codes of the model instead. Probabilities are fitted once to half
of the test images of learned classes, each of which also asks without its own class, and once to
these and to training images of every second of the other classes, as `phpq train
--hold-out-classes` does it; only the others of these classes are measured.

`--cache FOLDER` keeps the embeddings, so that a second run takes seconds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from provenance import provenance

import phpq
from phpq.additive import (
    AdditiveCodebooks,
    CodeClassifier,
    calibrate_additive,
    calibrate_codes,
    fit_additive,
    number_labels,
    softmax,
)
from phpq.codes import CodeArray, FloatArray, Space, score_codes
from phpq.data import LabelledImages, open_dataset
from phpq.evaluation.embedding import embed_readable
from phpq.gallery.verdicts import Classifier, predict

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
WRONG = (0.02, 0.05, 0.1)  # shares of wrong names that are accepted
SHOWN = 0.05
BINS = 15


@dataclass(frozen=True, eq=False)
class Photos:
    """Embeddings and what they show."""

    rows: FloatArray
    names: list[str]

    def part(self, chosen: Bools) -> Photos:
        """Return some of them."""
        return Photos(self.rows[chosen], [self.names[n] for n in np.flatnonzero(chosen)])

    def with_names(self, wanted: set[str]) -> Photos:
        """Return those of some classes."""
        return self.part(np.array([name in wanted for name in self.names], np.bool_))

    def __add__(self, other: Photos) -> Photos:
        return Photos(np.concatenate([self.rows, other.rows]), [*self.names, *other.names])


def embedded(
    model: Any, images: LabelledImages, cache: Path | None, space: Space = "general"
) -> Photos:
    """Embed images in a space, or read what was embedded before."""
    names = [images.class_names[label] for label in images.labels]
    end = ".npz" if space == "general" else "-learned.npz"
    file = None if cache is None else cache / f"{images.name.replace('/', '-')}{end}"
    if file is not None and file.is_file():
        kept = np.load(file)
        return Photos(kept["rows"], [str(name) for name in kept["names"]])
    general = {"general": partial(model.embed_pixels, space="general")}
    found = embed_readable(model, images, others=general if space == "general" else None)
    rows = found.others.get(space, found.embeddings)
    if found.skipped:
        names = [images.class_names[label] for label in found.images.labels]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, rows=rows, names=np.array(names))
    return Photos(rows, names)


def family(name: str) -> str:
    """Return the last word of a class name such as 014.Indigo_Bunting."""
    return name.partition(".")[2].split("_")[-1]


def auroc(known: Bools, scores: Floats) -> float:
    """Return how often a known photo scores above an unknown one; ties count half."""
    values, places = np.unique(scores, return_inverse=True)
    good = np.bincount(places[known], minlength=len(values))
    bad = np.bincount(places[~known], minlength=len(values))
    below = np.cumsum(bad) - bad
    return float((good * (below + bad / 2)).sum() / (good.sum() * bad.sum()))


def calibration_error(chances: Floats, right: Bools, weights: Floats) -> float:
    """Return the mean distance of chances from what came true, over bins of equal width."""
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    total = 0.0
    for number in range(BINS):
        mine = bins == number
        if mine.any():
            total += abs((weights[mine] * (chances[mine] - right[mine])).sum())
    return float(total / weights.sum())


def named_at(scores: Floats, right: Bools, known: Bools, weights: Floats, wrong: float) -> float:
    """Return the share of known photos named by the best cut-off there is, known in hindsight."""
    order = np.argsort(-scores, kind="stable")
    total, bad = np.cumsum(weights[order]), np.cumsum((weights * ~right)[order])
    good = np.flatnonzero(bad <= wrong * total)
    return float(known[order[: good[-1] + 1]].sum() / known.sum()) if len(good) else 0.0


def levels_of(told: list[Any]) -> NDArray[np.int64]:
    """Return 0 for a kind, 1 for a family, -1 for unknown."""
    return np.array([-1 if one.sure.level is None else one.sure.level for one in told])


class Trial:
    """A gallery, and photos that nothing was fitted to."""

    books: Classifier  # without probabilities
    codes: CodeArray  # of the gallery
    ways: tuple[str, ...]  # what probabilities are fitted to

    def __init__(self, gallery: Photos, known: Photos, unknown: Photos) -> None:
        self.gallery = gallery
        chosen = np.random.default_rng(0).random(len(known.names)) < 0.5
        self.held_out, asking = known.part(chosen), known.part(~chosen)
        self.rows = np.concatenate([asking.rows, unknown.rows])
        self.names = [*asking.names, *unknown.names]
        self.known = np.arange(len(self.rows)) < len(asking.rows)
        sizes = self.known.sum(), (~self.known).sum()
        self.weights = np.where(self.known, 0.5 / sizes[0], 0.5 / sizes[1])

    def calibrated(self, by: str, parents: dict[str, str]) -> Classifier:
        """Return the kinds with probabilities, fitted to one of `ways`."""
        raise NotImplementedError

    def tables(self, rows: FloatArray) -> FloatArray:
        """Return the lookup tables of queries."""
        raise NotImplementedError

    def accuracy(self) -> float:
        """Return how many known photos look most like their own class."""
        best = self.books.class_scores(self.rows).argmax(axis=1)
        right = self._right([self.books.class_names[place] for place in best])
        return float(right[self.known].mean())

    def usual(self, books: Classifier) -> list[dict[str, Any]]:
        """Measure the usual scores, which are no probabilities, in hindsight."""
        scores = books.class_scores(self.rows)
        right = self._right([books.class_names[place] for place in scores.argmax(axis=1)])
        blocks = [
            score_codes(self.tables(self.rows[start : start + 256]), self.codes).max(axis=1)
            for start in range(0, len(self.rows), 256)
        ]
        ways = {
            "max softmax": softmax(books.sharpness * scores).max(axis=1),
            "max logit": scores.max(axis=1),
            "nearest image": np.concatenate(blocks),
        }
        return [self._hindsight(name, way.astype(np.float64), right) for name, way in ways.items()]

    def ours(self, by: str, books: Classifier) -> dict[str, Any]:
        """Measure probabilities, and what the stored cut-offs make of them."""
        everything = np.arange(len(books.class_names))
        told = predict(books, self.rows, everything, SHOWN)
        known = np.array([one.known for one in told])
        best = known * np.array([one.kinds[0][1] for one in told if one.kinds])
        right = self._right([one.kinds[0][0] for one in told if one.kinds])
        row = self._hindsight(f"phpq, fitted to {by}", best, right)
        row["auroc"] = auroc(self.known, known)
        row["calibration_error"] = calibration_error(best, right, self.weights)
        row["cut_offs"] = [
            {"wrong_at_most": wrong, **self._named(predict(books, self.rows, everything, wrong))}
            for wrong in WRONG
        ]
        return row

    def backed_off(self, by: str, books: Classifier) -> dict[str, Any]:
        """Measure answers at the level that is sure, beside those of kinds alone."""
        everything = np.arange(len(books.class_names))
        alone = predict(self.without_parents(books), self.rows, everything, SHOWN)
        return {
            "fitted_to": by,
            "wrong_at_most": SHOWN,
            "alone": self._answers(alone),
            "backed_off": self._answers(predict(books, self.rows, everything, SHOWN)),
        }

    @staticmethod
    def without_parents(books: Any) -> Classifier:
        """Return the same kinds, which belong to nothing."""
        alone: Classifier = replace(books, parents={})
        return alone

    def _answers(self, told: list[Any]) -> dict[str, Any]:
        levels, weights = levels_of(told), self.weights
        truths = [(name, family(name)) for name in self.names]
        right = np.array(
            [
                one.sure.label is not None and one.sure.label == truth[one.sure.level]
                for one, truth in zip(told, truths, strict=True)
            ]
        )

        def told_of(chosen: Bools) -> dict[str, Any]:
            given = float(weights[chosen].sum())
            return {
                "answered": given,
                "of_known": float(chosen[self.known].mean()),
                "of_unknown": float(chosen[~self.known].mean()),
                "right": float(weights[chosen & right].sum() / given) if given else None,
            }

        return {
            "all": told_of(levels >= 0),
            "species": told_of(levels == 0),
            "family": told_of(levels == 1),
        }

    def _named(self, told: list[Any]) -> dict[str, float]:
        named = levels_of(told) == 0
        right = self._right([one.sure.label for one in told])
        total = float(self.weights[named].sum())
        wrong = float(self.weights[named & ~right].sum())
        return {"named": float(named[self.known].mean()), "wrong": wrong / total if total else 0.0}

    def _right(self, labels: list[str | None]) -> Bools:
        return np.array([one == name for one, name in zip(labels, self.names, strict=True)])

    def _hindsight(self, name: str, scores: Floats, right: Bools) -> dict[str, Any]:
        reached = named_at(scores, right, self.known, self.weights, SHOWN)
        return {"score": name, "auroc": auroc(self.known, scores), "named_in_hindsight": reached}


class OwnTrial(Trial):
    """A gallery with codebooks of its own."""

    ways = ("gallery", "photos")

    def __init__(self, gallery: Photos, known: Photos, unknown: Photos, bits: int) -> None:
        super().__init__(gallery, known, unknown)
        self.own = fit_additive(gallery.rows, gallery.names, num_codebooks=bits // 8)
        self.books, self.codes = self.own, self.own.encode(gallery.rows, gallery.names)

    def calibrated(self, by: str, parents: dict[str, str]) -> AdditiveCodebooks:
        """Return the codebooks with probabilities, fitted to the gallery or to held-out photos."""
        photos = (self.held_out.rows, self.held_out.names) if by == "photos" else None
        books = replace(self.own, parents=parents)
        return calibrate_additive(books, self.gallery.rows, self.gallery.names, photos)

    def tables(self, rows: FloatArray) -> FloatArray:
        """Return the lookup tables of queries."""
        return self.own.lookup_tables(rows)


class CodeTrial(Trial):
    """A gallery with the codebooks of its model; `strangers` show classes that nobody asks for."""

    ways = ("photos", "photos and new kinds")

    def __init__(
        self, gallery: Photos, known: Photos, unknown: Photos, strangers: Photos, model: Any
    ) -> None:
        super().__init__(gallery, known, unknown)
        self.strangers, self.codes = strangers, model.codebooks.encode(gallery.rows)
        names = tuple(sorted(set(gallery.names)))
        classes, norm = number_labels(gallery.names, names), model.query_norm
        self.coded = CodeClassifier.from_codes(
            model.codebooks, self.codes, classes, names, norm=norm
        )
        self.books = self.coded

    def calibrated(self, by: str, parents: dict[str, str]) -> CodeClassifier:
        """Return the kinds with probabilities, fitted to photos, with those of new kinds or not."""
        photos = self.held_out if by == "photos" else self.held_out + self.strangers
        return calibrate_codes(replace(self.coded, parents=parents), (photos.rows, photos.names))

    def tables(self, rows: FloatArray) -> FloatArray:
        """Return the lookup tables of queries."""
        return self.coded.books.lookup_tables(rows, norm=self.coded.norm)


def made_trial(model: Any, options: argparse.Namespace) -> Trial:
    """Embed the images, and make the gallery."""
    data, learned = open_dataset(options.data), set(model.class_names)
    space: Space = "learned" if options.codebooks == "model" else "general"

    def chosen(images: LabelledImages, name: str, *, known: bool) -> Photos:
        numbers = [n for n, each in enumerate(images.class_names) if (each in learned) == known]
        part = images.subset(np.flatnonzero(np.isin(images.labels, numbers)))
        return embedded(model, replace(part, name=name), options.cache, space)

    gallery = chosen(data.train, "gallery", known=True)
    known = chosen(data.test, "known", known=True)
    unknown = chosen(data.test, "unknown", known=False)
    if options.codebooks == "own":
        return OwnTrial(gallery, known, unknown, options.bits)
    others = [name for name in data.class_names if name not in learned]
    strangers = chosen(data.train, "strangers", known=False).with_names(set(others[::2]))
    return CodeTrial(gallery, known, unknown.with_names(set(others[1::2])), strangers, model)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", required=True, help="trained with --hold-out-classes 0.5")
    parser.add_argument("--data", default="cub200")
    parser.add_argument("--codebooks", choices=("own", "model"), default="own")
    parser.add_argument("--bits", type=int, default=64, help="of codebooks of the gallery's own")
    parser.add_argument("--cache", type=Path, help="folder that embeddings are kept in")
    parser.add_argument("--embeddings", default="of the run", help="what the cache holds, in words")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = phpq.load(options.run)
    trial = made_trial(model, options)
    learned = set(model.class_names)
    parents = {name: family(name) for name in learned}
    ways = {by: trial.calibrated(by, parents) for by in trial.ways}
    plain = {by: trial.calibrated(by, {}) for by in trial.ways}
    content = {
        **provenance(options),
        "trained": {
            "backbone": model.card.config.model.backbone,
            "trainable": model.card.config.training.trainable,
        },
        "embeddings": options.embeddings,
        "images": {
            "gallery": len(trial.gallery.names),
            "held_out": len(trial.held_out.names),
            "known": int(trial.known.sum()),
            "unknown": int((~trial.known).sum()),
        },
        "classes": len(learned),
        "families": len(set(parents.values())),
        "accuracy": trial.accuracy(),
        "scores": [
            *trial.usual(plain["photos"]),
            *(trial.ours(by, books) for by, books in plain.items()),
        ],
        "parents": [trial.backed_off(by, books) for by, books in ways.items()],
    }
    print(json.dumps({name: content[name] for name in ("images", "scores", "parents")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
