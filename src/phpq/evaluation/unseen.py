"""Retrieval of kinds that training never saw: embeddings, class numbers and a split in, scores out.

    unseen          images of new kinds ask among each other, leave one out
    seen@seen ...   queries apart from the gallery: of learned or new kinds, @ a gallery of these or
                    of all
    five labelled   new kinds are named by the nearest prototype of five labelled images each

Each is measured by float search and by codes of the gallery's own codebooks, with and without its
labels, and beside them what a caller brings along (`kinds.Way`).
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
from phpq.evaluation.kinds import (
    KindScore,
    KindSplit,
    UseOfLabels,
    Way,
    best_pq,
    fitted_to,
    names_of,
    own_codes,
    search,
    with_labels,
)

TRUSTS = (0.5, 0.8, 0.95)  # tried where labels are wrong
SHOTS, DRAWS = 5, 5  # labelled images of a new kind, and how often they are drawn
FLIPPED = 0.1  # share of the labels that are made wrong
UNSEEN = "unseen"
GROWN = "unseen@all, before a refit"
OPEN = ("seen@seen", "seen@all", "unseen@unseen", "unseen@all")
FIVE = "five labelled"
PROTOCOLS = (UNSEEN, *OPEN, FIVE)


@dataclass(frozen=True, slots=True)
class UnseenScores:
    """All that was measured, and what could not be."""

    scores: tuple[KindScore, ...]
    left_out: tuple[str, ...] = ()  # what was not measured, with the reason

    def find(self, protocol: str, way: str, labels: UseOfLabels, bits: int = 0) -> KindScore | None:
        """Return a score; 0 bits is the first of any length."""
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
        """Return the figures by which galleries of new kinds are judged, in per cent."""

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


def evaluate_unseen(  # noqa: PLR0913  by name
    spaces: FloatArray,
    labels: IntArray,
    split: KindSplit,
    *,
    bits: Sequence[int] = (32, 64, 128),
    trust: float = TRUST,
    others: Sequence[Way] = (),
    copies: tuple[FloatArray, IntArray] | None = None,
    details: bool = True,
) -> UnseenScores:
    """Measure every protocol on general embeddings (N, E) of images with class numbers (N,).

    Protocols other than "unseen" are measured at 64 bits, or the first length. `others` are
    measured beside float search and the gallery's own codes. `copies` are embeddings (n, E) of
    changed copies of gallery images of new kinds, and the rows (n,) of these. `details` adds what a
    gallery meets in use: growth, rows without label, and wrong labels.
    """
    images = check_embeddings("spaces", spaces)
    numbers = check_labels("labels", labels, len(images))
    _check_split(split, len(images))
    main = 64 if 64 in bits else bits[0]
    near = Way("float", normalise_sub_vectors(images, 1))
    plain = {length: own_codes(images, length) for length in bits}
    trusting = own_codes(images, main, trust=trust)
    extra = (best_pq(images, main, numbers, split), *others)

    def scores() -> Iterator[KindScore]:
        for way in (near, *plain.values(), *extra):
            yield leave_one_out(way, numbers, split)
        for way in (near, *extra):
            for used in (way, with_labels(way, trust)):
                yield from open_protocols(used, numbers, split)
        for way in (plain[main], trusting):
            yield from open_protocols(way, numbers, split)
        yield from five_labelled(images, numbers, split, bits=main, trust=trust)
        if copies is not None:
            for way in (near, plain[main], trusting):
                yield own_look(way, numbers, split, copies=copies[0], originals=copies[1])
        if details:
            yield from half_fitted((near, plain[main]), numbers, split)
            yield from grown((plain[main], trusting), numbers, split)
            yield from half_labelled(trusting, numbers, split)
            yield from wrong_labels(images, numbers, split, bits=main)

    return UnseenScores(tuple(scores()))


def leave_one_out(way: Way, labels: IntArray, split: KindSplit) -> KindScore:
    """Let the images of new kinds ask among each other."""
    everything = split.rows(new=True)
    return search(way, labels, UNSEEN, gallery=everything, queries=everything)


def open_protocols(way: Way, labels: IntArray, split: KindSplit) -> Iterator[KindScore]:
    """Measure queries of learned and of new kinds, in a gallery of these and of all."""
    kinds, names = {"seen": False, "unseen": True, "all": None}, names_of(labels)
    galleries = {name: split.rows(new=new, query=False) for name, new in kinds.items()}
    ways = {name: fitted_to(way, rows, names) for name, rows in galleries.items()}
    for protocol in OPEN:
        asking, _, name = protocol.partition("@")
        queries = split.rows(new=kinds[asking], query=True)
        yield search(ways[name], labels, protocol, gallery=galleries[name], queries=queries)


def five_labelled(
    images: FloatArray, labels: IntArray, split: KindSplit, *, bits: int, trust: float = TRUST
) -> Iterator[KindScore]:
    """Name queries of new kinds by five labelled images of each: mean accuracy of five draws.

    "float" takes the nearest of the unit means of unit vectors; "codes" what the codebooks of a
    gallery of these images say of the kinds that it holds.
    """
    gallery, queries = split.rows(new=True, query=False), split.rows(new=True, query=True)
    kinds, rows = np.unique(labels[gallery]), normalise_sub_vectors(images, 1)
    right: dict[str, list[float]] = {"float": [], "codes": []}
    for seed in range(DRAWS):
        drawn = draw_shots(labels, gallery, seed=seed)
        means = class_means(rows[drawn], np.searchsorted(kinds, labels[drawn]), len(kinds))
        nearest = (rows[queries] @ means.T).argmax(axis=1)
        right["float"].append(float(np.mean(kinds[nearest] == labels[queries])))
        given = [str(label) for label in labels[drawn]]
        books = fit_additive(images[drawn], given, num_codebooks=bits // 8, trust=trust)
        named = np.array([int(name) for name in books.class_names])
        guessed = named[books.class_scores(images[queries]).argmax(axis=1)]
        right["codes"].append(float(np.mean(guessed == labels[queries])))
    lengths = {"float": 32 * images.shape[1], "codes": bits}
    for way, shares in right.items():
        yield KindScore(
            protocol=FIVE,
            way=way,
            labels="with",
            bits=lengths[way],
            bytes_per_image=lengths[way] / 8,
            values={"accuracy": 100 * float(np.mean(shares))},
            queries=len(queries),
            gallery=len(kinds) * SHOTS,
        )


def draw_shots(labels: IntArray, gallery: IntArray, *, seed: int) -> IntArray:
    """Draw five rows of each class of a gallery, or all where there are fewer."""
    shuffled = np.random.default_rng(seed).permutation(gallery)
    kinds = np.unique(labels[gallery])
    return np.concatenate([shuffled[labels[shuffled] == kind][:SHOTS] for kind in kinds])


def half_fitted(ways: Sequence[Way], labels: IntArray, split: KindSplit) -> Iterator[KindScore]:
    """Fit codebooks to a random half of the images of new kinds, and ask with the other half."""
    everything = split.rows(new=True)
    half = np.random.default_rng(0).random(len(everything)) < 0.5
    protocol = "unseen, codebooks of one half, queries of the other"
    for way in ways:
        known = fitted_to(way, everything[half], names_of(labels))
        yield search(known, labels, protocol, gallery=everything, queries=everything[~half])


def grown(ways: Sequence[Way], labels: IntArray, split: KindSplit) -> Iterator[KindScore]:
    """Fit codebooks to learned kinds, add new ones and ask for these; "unseen@all" is after."""
    gallery, queries = split.rows(query=False), split.rows(new=True, query=True)
    for way in ways:
        known = fitted_to(way, split.rows(new=False, query=False), names_of(labels))
        yield search(known, labels, GROWN, gallery=gallery, queries=queries)


def half_labelled(way: Way, labels: IntArray, split: KindSplit) -> Iterator[KindScore]:
    """Take the labels of half of the rows away, and look for either half among all of them."""
    gallery, queries = split.rows(new=True, query=False), split.rows(new=True, query=True)
    named = np.random.default_rng(0).random(len(labels)) < 0.5
    names = [name if known else None for name, known in zip(names_of(labels), named, strict=True)]
    way = fitted_to(way, gallery, names)
    for kind, ignored in (("labelled", ~named), ("unlabelled", named)):
        yield search(
            way,
            labels,
            f"unseen@unseen, half of the rows labelled: {kind} rows",
            gallery=gallery,
            queries=queries,
            names=names,
            ignored=ignored,
        )


def wrong_labels(
    images: FloatArray,
    labels: IntArray,
    split: KindSplit,
    *,
    bits: int,
    trusts: Sequence[float] = TRUSTS,
) -> Iterator[KindScore]:
    """Make a tenth of the labels of new kinds wrong, at several weights of trust.

    Hits are right by their true class. Of the images with a wrong label: what they find when they
    ask, how they are found among each other by queries of their true class, and by themselves.
    """
    gallery, queries = split.rows(new=True, query=False), split.rows(new=True, query=True)
    names, flipped = flip_labels(labels, gallery, seed=0)
    if not len(flipped):  # one kind, or few images: there is nothing to make wrong
        return
    for trust in trusts:
        way, suffix = own_codes(images, bits, trust=trust), f"trust {trust:g}"
        yield search(way, labels, f"true labels, {suffix}", gallery=gallery, queries=queries)
        find = partial(search, fitted_to(way, gallery, names), names=names)
        yield find(labels, f"wrong labels, {suffix}", gallery=gallery, queries=queries)
        asking = f"wrong labels, {suffix}: these images ask"
        yield find(labels, asking, gallery=gallery, queries=flipped)
        among = f"wrong labels, {suffix}: these images, by their true class"
        yield find(labels, among, gallery=flipped, queries=queries)
        own, itself = f"wrong labels, {suffix}: these images, by themselves", np.arange(len(labels))
        yield find(itself, own, gallery=gallery, queries=flipped, itself=True)


def own_look(
    way: Way, labels: IntArray, split: KindSplit, *, copies: FloatArray, originals: IntArray
) -> KindScore:
    """Let changed copies (n, E) of gallery images of new kinds look for their originals (n,) rows.

    The copies lie in the space of the way's embeddings. Only the original is right: R@10 says how
    often it is among the first ten.
    """
    gallery, count = split.rows(new=True, query=False), len(labels)
    everything = replace(way, embeddings=np.concatenate([way.embeddings, copies]))
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
    kinds = np.unique(labels[gallery])
    count = int(len(gallery) * FLIPPED + 0.5) if len(kinds) > 1 else 0
    flipped = np.sort(rng.choice(gallery, count, replace=False))
    for row in flipped:
        names[row] = str(rng.choice(kinds[kinds != labels[row]]))
    return names, flipped


def _check_split(split: KindSplit, count: int) -> None:
    for name, mask in (("new", split.new), ("query", split.query)):
        if mask.shape != (count,) or mask.dtype != np.bool_:
            raise ShapeError(
                f"split.{name} has shape {mask.shape} and dtype {str(mask.dtype)!r}; expected one "
                f"bool per image, shape ({count},)."
            )
    for new, kind in ((True, "new kinds"), (False, "learned classes")):
        if not len(split.rows(new=new, query=False)):
            raise ShapeError(
                f"The split has no gallery image of {kind}. Hold out some of the classes, and "
                "leave images of each to search in."
            )
