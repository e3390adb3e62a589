"""Retrieval of unseen classes: embeddings, class numbers and a split in, scores out.

    unseen          images of unseen classes among each other, leave one out
    seen@seen ...   queries of learned or unseen classes, @ a gallery of learned, unseen or all
                    classes, without the queries
    five labelled   five-shot classification of unseen classes by prototypes

Each is measured by float search and by codes of the gallery's own codebooks, with and without its
labels, and by setups of the caller (`search.SearchSetup`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from phpq.additive import TRUST, class_means, fit_additive
from phpq.codes import FloatArray, IntArray, check_embeddings, normalise_sub_vectors
from phpq.errors import ShapeError
from phpq.evaluation._ranking import check_labels
from phpq.evaluation.search import (
    ClassSplit,
    SearchScore,
    SearchSetup,
    UseOfLabels,
    additive_codes,
    best_pq,
    fitted_to,
    names_of,
    search,
    with_labels,
)

TRUSTS = (0.5, 0.8, TRUST)  # that are measured with wrong labels; the last is the default
SHOTS, DRAWS = 5, 5  # labelled images per class, and how often they are drawn
FLIPPED = 0.1  # share of the labels that are made wrong
UNSEEN = "unseen"
BEFORE_REFIT = "unseen@all, before a refit"
HALF_FITTED = "unseen, codebooks of one half, queries of the other"
HALF_LABELLED = "unseen@unseen, half of the rows labelled: {} rows"
RIGHT_LABELS, WRONG_LABELS = "true labels, trust {:g}", "wrong labels, trust {:g}"
ASKING = f"{WRONG_LABELS}: these images ask"
BY_TRUE_CLASS = f"{WRONG_LABELS}: these images, by their true class"
BY_THEMSELVES = f"{WRONG_LABELS}: these images, by themselves"
OPEN = ("seen@seen", "seen@all", "unseen@unseen", "unseen@all")
FIVE = "five labelled"
PROTOCOLS = (UNSEEN, *OPEN, FIVE)


@dataclass(frozen=True, slots=True)
class UnseenScores:
    """All scores, and what was not measured."""

    scores: tuple[SearchScore, ...]
    left_out: tuple[str, ...] = ()  # what was not measured, with the reason

    def find(
        self, protocol: str, way: str, labels: UseOfLabels, bits: int = 0
    ) -> SearchScore | None:
        """Return a score; 0 bits takes the first of any length."""
        for score in self.scores:
            same = (score.protocol, score.way, score.labels) == (protocol, way, labels)
            if same and bits in (0, score.bits):
                return score
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "scores": [asdict(score) for score in self.scores],
            "left_out": list(self.left_out),
            **self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the headline figures, in per cent."""

        def value(name: str, protocol: str, *way: Any) -> float | None:
            found = self.find(protocol, *way)
            return None if found is None else found.values[name]

        lengths = sorted({s.bits for s in self.scores if (s.protocol, s.way) == (UNSEEN, "codes")})
        main = [s.bits for s in self.scores if (s.protocol, s.way) == ("unseen@all", "codes")][:1]
        pair = ("r1", "map_r")
        return {
            "half": {
                "float": {name: value(name, UNSEEN, "float", "without") for name in pair},
                "codes": {
                    str(bits): {
                        name: value(name, UNSEEN, "codes", "without", bits) for name in pair
                    }
                    for bits in lengths
                },
            },
            "labelled": {
                str(bits): {
                    "map": value("map", "unseen@unseen", "codes", "with"),
                    "p1": value("r1", "unseen@unseen", "codes", "with"),
                    "all_map": value("map", "unseen@all", "codes", "with"),
                    "five_shot": value("accuracy", FIVE, "codes", "with"),
                }
                for bits in main
            },
            "open": {
                str(bits): {
                    f"{name.replace('@', '_')}{suffix}": value("map", name, "codes", labels)
                    for labels, suffix in (("without", ""), ("with", "_labelled"))
                    for name in OPEN
                }
                for bits in main
            },
        }


def evaluate_unseen(
    embeddings: FloatArray,
    labels: IntArray,
    split: ClassSplit,
    *,
    bits: Sequence[int] = (32, 64, 128),
    others: Sequence[SearchSetup] = (),
    copies: tuple[FloatArray, IntArray] | None = None,
    details: bool = True,
) -> UnseenScores:
    """Measure every protocol on general embeddings (N, E) of images with class numbers (N,).

    Protocols other than "unseen" are measured at 64 bits, or the first length. `others` are
    measured beside float search and the gallery's own codes. `copies` are embeddings (n, E) of
    edited copies of gallery images of unseen classes, and the rows (n,) of the originals. `details`
    adds what happens in use: a growing gallery, missing labels, and wrong ones.
    """
    images = check_embeddings("embeddings", embeddings)
    numbers = check_labels("labels", labels, len(images))
    _check_split(split, len(images))
    main = 64 if 64 in bits else bits[0]
    floats = SearchSetup("float", normalise_sub_vectors(images, 1))
    plain = {length: additive_codes(images, length) for length in bits}
    trusting = additive_codes(images, main, trust=TRUST)
    extra = (best_pq(images, main, numbers, split), *others)

    def scores() -> Iterator[SearchScore]:
        for setup in (floats, *plain.values(), *extra):
            yield leave_one_out(setup, numbers, split)
        for setup in (floats, *extra):
            for used in (setup, with_labels(setup, TRUST)):
                yield from open_protocols(used, numbers, split)
        for setup in (plain[main], trusting):
            yield from open_protocols(setup, numbers, split)
        yield from five_shot(images, numbers, split, bits=main)
        if copies is not None:
            for setup in (floats, plain[main], trusting):
                yield find_originals(setup, numbers, split, copies=copies[0], originals=copies[1])
        if details:
            yield from half_fitted((floats, plain[main]), numbers, split)
            yield from before_refit((plain[main], trusting), numbers, split)
            yield from half_labelled(trusting, numbers, split)
            yield from wrong_labels(images, numbers, split, bits=main)

    return UnseenScores(tuple(scores()))


def leave_one_out(setup: SearchSetup, labels: IntArray, split: ClassSplit) -> SearchScore:
    """Search for each image of unseen classes among the others."""
    everything = split.rows(unseen=True)
    return search(setup, labels, UNSEEN, gallery=everything, queries=everything)


def open_protocols(
    setup: SearchSetup, labels: IntArray, split: ClassSplit
) -> Iterator[SearchScore]:
    """Measure queries of learned and of unseen classes, in a gallery of these and of all."""
    parts, names = {"seen": False, "unseen": True, "all": None}, names_of(labels)
    galleries = {name: split.rows(unseen=unseen, query=False) for name, unseen in parts.items()}
    setups = {name: fitted_to(setup, rows, names) for name, rows in galleries.items()}
    for protocol in OPEN:
        part, _, name = protocol.partition("@")
        queries = split.rows(unseen=parts[part], query=True)
        yield search(setups[name], labels, protocol, gallery=galleries[name], queries=queries)


def five_shot(
    images: FloatArray, labels: IntArray, split: ClassSplit, *, bits: int
) -> Iterator[SearchScore]:
    """Classify queries of unseen classes by five labelled images of each: mean of five draws.

    "float" takes the nearest class mean of unit vectors; "codes" the best class score of the
    codebooks of a gallery of these images.
    """
    gallery, queries = split.rows(unseen=True, query=False), split.rows(unseen=True, query=True)
    classes, rows = np.unique(labels[gallery]), normalise_sub_vectors(images, 1)
    accuracies: dict[str, list[float]] = {"float": [], "codes": []}
    for seed in range(DRAWS):
        drawn = draw_shots(labels, gallery, seed=seed)
        means = class_means(rows[drawn], np.searchsorted(classes, labels[drawn]), len(classes))
        nearest = (rows[queries] @ means.T).argmax(axis=1)
        accuracies["float"].append(float(np.mean(classes[nearest] == labels[queries])))
        given = [str(label) for label in labels[drawn]]
        books = fit_additive(images[drawn], given, num_codebooks=bits // 8, trust=TRUST)
        named = np.array([int(name) for name in books.class_names])
        predicted = named[books.class_scores(images[queries]).argmax(axis=1)]
        accuracies["codes"].append(float(np.mean(predicted == labels[queries])))
    lengths = {"float": 32 * images.shape[1], "codes": bits}
    for way, shares in accuracies.items():
        yield SearchScore(
            protocol=FIVE,
            way=way,
            labels="with",
            bits=lengths[way],
            bytes_per_image=lengths[way] / 8,
            values={"accuracy": 100 * float(np.mean(shares))},
            queries=len(queries),
            gallery=len(classes) * SHOTS,
        )


def draw_shots(labels: IntArray, gallery: IntArray, *, seed: int) -> IntArray:
    """Draw five rows of each class of a gallery, or all if there are fewer."""
    shuffled = np.random.default_rng(seed).permutation(gallery)
    classes = np.unique(labels[gallery])
    return np.concatenate([shuffled[labels[shuffled] == one][:SHOTS] for one in classes])


def half_fitted(
    setups: Sequence[SearchSetup], labels: IntArray, split: ClassSplit
) -> Iterator[SearchScore]:
    """Fit codebooks to a random half of the images of unseen classes; the others are queries."""
    everything = split.rows(unseen=True)
    half = np.random.default_rng(0).random(len(everything)) < 0.5
    for setup in setups:
        known = fitted_to(setup, everything[half], names_of(labels))
        yield search(known, labels, HALF_FITTED, gallery=everything, queries=everything[~half])


def before_refit(
    setups: Sequence[SearchSetup], labels: IntArray, split: ClassSplit
) -> Iterator[SearchScore]:
    """Fit codebooks to learned classes, add unseen ones and search for these.

    As an addition leaves a gallery that keeps no embeddings: nobody asks for a refit.
    """
    gallery, queries = split.rows(query=False), split.rows(unseen=True, query=True)
    for setup in setups:
        known = fitted_to(setup, split.rows(unseen=False, query=False), names_of(labels))
        known = replace(known, refit=setup.fit)
        yield search(known, labels, BEFORE_REFIT, gallery=gallery, queries=queries)


def half_labelled(setup: SearchSetup, labels: IntArray, split: ClassSplit) -> Iterator[SearchScore]:
    """Remove the labels of half of the rows, and search for either half among all of them."""
    gallery, queries = split.rows(unseen=True, query=False), split.rows(unseen=True, query=True)
    named = np.random.default_rng(0).random(len(labels)) < 0.5
    names = [name if known else None for name, known in zip(names_of(labels), named, strict=True)]
    setup = fitted_to(setup, gallery, names)
    for kind, ignored in (("labelled", ~named), ("unlabelled", named)):
        yield search(
            setup,
            labels,
            HALF_LABELLED.format(kind),
            gallery=gallery,
            queries=queries,
            names=names,
            ignored=ignored,
        )


def wrong_labels(
    images: FloatArray, labels: IntArray, split: ClassSplit, *, bits: int
) -> Iterator[SearchScore]:
    """Make a tenth of the labels of unseen classes wrong, at several levels of trust.

    Hits are relevant by their true class. Images with a wrong label are also measured as queries,
    as a gallery for queries of their true class, and as queries that look for themselves.
    """
    gallery, queries = split.rows(unseen=True, query=False), split.rows(unseen=True, query=True)
    names, flipped = flip_labels(labels, gallery, seed=0)
    if not len(flipped):  # one class, or too few images
        return
    for trust in TRUSTS:
        setup, itself = additive_codes(images, bits, trust=trust), np.arange(len(labels))
        yield search(setup, labels, RIGHT_LABELS.format(trust), gallery=gallery, queries=queries)
        find = partial(search, fitted_to(setup, gallery, names), names=names)
        yield find(labels, WRONG_LABELS.format(trust), gallery=gallery, queries=queries)
        yield find(labels, ASKING.format(trust), gallery=gallery, queries=flipped)
        yield find(labels, BY_TRUE_CLASS.format(trust), gallery=flipped, queries=queries)
        yield find(
            itself, BY_THEMSELVES.format(trust), gallery=gallery, queries=flipped, itself=True
        )


def find_originals(
    setup: SearchSetup,
    labels: IntArray,
    split: ClassSplit,
    *,
    copies: FloatArray,
    originals: IntArray,
) -> SearchScore:
    """Search for the originals (n,) of edited copies (n, E) among images of unseen classes.

    Copies are embedded as those of the setup are. Only the original is relevant: R@10 is how often
    it is among the first ten.
    """
    gallery, count = split.rows(unseen=True, query=False), len(labels)
    everything = replace(setup, embeddings=np.concatenate([setup.embeddings, copies]))
    return search(
        everything,
        np.concatenate([np.arange(count), originals]),
        "own look",
        gallery=gallery,
        queries=np.arange(count, count + len(copies)),
        names=[*names_of(labels), *[None] * len(copies)],
    )


def flip_labels(
    labels: IntArray, gallery: IntArray, *, seed: int
) -> tuple[list[str | None], IntArray]:
    """Give a tenth of a gallery's rows the label of another of its classes.

    Returns the labels of all N images, and the rows that were changed.
    """
    rng, names = np.random.default_rng(seed), names_of(labels)
    classes = np.unique(labels[gallery])
    count = int(len(gallery) * FLIPPED + 0.5) if len(classes) > 1 else 0
    flipped = np.sort(rng.choice(gallery, count, replace=False))
    for row in flipped:
        names[row] = str(rng.choice(classes[classes != labels[row]]))
    return names, flipped


def _check_split(split: ClassSplit, count: int) -> None:
    for name, mask in (("unseen", split.unseen), ("query", split.query)):
        if mask.shape != (count,) or mask.dtype != np.bool_:
            raise ShapeError(
                f"split.{name} has shape {mask.shape} and dtype {str(mask.dtype)!r}; expected one "
                f"bool per image, shape ({count},)."
            )
    for unseen, kind in ((True, "new kinds"), (False, "learned classes")):
        if not len(split.rows(unseen=unseen, query=False)):
            raise ShapeError(
                f"The split has no gallery image of {kind}. Hold out some of the classes, and "
                "leave images of each to search in."
            )
