"""What a gallery says a photo shows: queries and a filter in, kinds, chances and a name out.

Codebooks that a gallery owns know its kinds. Those of a model do where somebody fitted how likely
answers are: to photos, for this gallery, or to held-out images, when the model was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from phpq.additive import Calibration, CodeKinds, code_prototypes, levels, number_labels, softmax
from phpq.additive.chances import Chances
from phpq.codes import Codebooks, FloatArray, IntArray
from phpq.gallery.models import model_chances
from phpq.gallery.owned import read_said
from phpq.hits import SHOWN_KINDS, Kinds, Sure

if TYPE_CHECKING:
    from phpq.gallery.shards import KindWords
    from phpq.gallery.store import GalleryStore

_MOST_VALUES = 1 << 25  # of prototypes, (labels, D): 20,000 labels of 1,536 numbers, 128 MB
_HELP = "phpq gallery calibrate does that with labelled photos"
_LEARNED = 0.5  # share of the labelled images whose kinds the model learned, for its chances


class Knows(Protocol):
    """The kinds of a gallery: what scores them, and what scores tell."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """What they are called."""

    @property
    def sharpness(self) -> float:
        """The factor of scores under which a softmax of them gives shares."""

    @property
    def chances(self) -> Chances | None:
        """How likely answers are; None where that is not known."""

    @property
    def parents(self) -> Mapping[str, str]:
        """What names belong to."""

    def kinds(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C), higher is better."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a gallery with the codebooks of its model knows of its doubt."""

    said: Calibration  # whose parents hold, whatever else is known
    by: Literal["photos", "model"] | None  # what chances were fitted to; None: there are none
    why_not: str = ""


def doubt_of(store: GalleryStore, label_counts: Callable[[], Mapping[str, int]]) -> Doubt:
    """Return what a version knows of its doubt; labels are counted only if that matters.

    What was fitted for the gallery itself wins. What was fitted with the model holds for kinds that
    the model learned: of others its scores say something else.
    """
    said, manifest = read_said(store.folder, store.manifest), store.manifest
    by: Literal["photos", "model"] = "photos"
    counts: Mapping[str, int] = {}
    if said.chances is None:
        told = model_chances(store.folder, manifest)
        if told is None:
            return Doubt(said, None, f"neither the model nor the gallery was fitted; {_HELP}")
        counts = label_counts()
        learned = sum(count for name, count in counts.items() if name in told[1])
        if learned < _LEARNED * sum(counts.values()):
            return Doubt(said, None, f"most images are of kinds the model never learned; {_HELP}")
        said, by = replace(told[0], parents=said.parents), "model"
    counts = counts or label_counts()
    if len(counts) * manifest.embedding_dim > _MOST_VALUES:
        parents = Calibration(parents=said.parents)
        return Doubt(parents, None, f"{len(counts):,} labels are too many to compare with each")
    return Doubt(said, by)


def code_kinds_of(
    store: GalleryStore,
    books: Codebooks,
    label_counts: Callable[[], Mapping[str, int]],
    words: Callable[[], Sequence[KindWords]],
) -> CodeKinds | None:
    """Return the kinds of a gallery with its model's codebooks; None where doubt is not known.

    `words` counts the codewords of every label, in each shard.
    """
    said = doubt_of(store, label_counts).said
    if said.chances is None:
        return None
    parts = words()
    names = tuple(sorted({name for part in parts for name in part.label_names}))
    placed = [(number_labels(part.label_names, names), part.counts) for part in parts]
    means = code_prototypes(books, placed, len(names))
    return CodeKinds(books, store.manifest.query_norm, names, means).told_by(said)


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What is said of one photo."""

    kinds: Kinds | None = None  # the likeliest that pass the filter; None where none are known
    known: float | None = None  # the chance that it is one of the kinds that pass
    sure: Sure | None = None
    _shares: FloatArray | None = None  # (P,) of the kinds that pass
    _places: dict[str, int] | None = None  # of labels among these

    def chance(self, label: str | None) -> float | None:
        """Return how likely the photo shows what a hit with a label shows; None if not known."""
        if self.known is None or self._shares is None or self._places is None:
            return None
        place = None if label is None else self._places.get(label)
        return None if place is None else self.known * float(self._shares[place])


NOTHING = Told()


def tell(
    books: Knows, queries: FloatArray, passing: IntArray, wrong_at_most: float | None
) -> list[Told]:
    """Say what (Q, D) queries show, of the classes (P,) of the images that pass a filter.

    Without `wrong_at_most` probabilities are left out: those of images of the gallery would lie.
    """
    scores = books.kinds(queries)
    # Not a part of the shares among all classes: those might all have been rounded to nothing.
    likely = softmax(books.sharpness * scores[:, passing])
    names = [books.class_names[place] for place in passing.tolist()]
    kinds = [_likeliest(shares, names) for shares in likely]
    chances = books.chances
    if chances is None or wrong_at_most is None or not len(passing):
        return [Told(each) for each in kinds]
    everything = softmax(books.sharpness * scores)
    anyhow = chances.known(scores, books.sharpness)
    known = anyhow * everything[:, passing].sum(axis=1, dtype=np.float64)
    best = known * likely.max(axis=1)
    found = [(best, [names[place] for place in likely.argmax(axis=1).tolist()])]
    for level, above in enumerate(levels(books.class_names, books.parents), start=1):
        share, numbers = above.likeliest(everything, passing)
        chance = np.where(numbers < 0, -1.0, chances.parent(level, anyhow, share))
        found.append((chance, [above.names[number] for number in numbers.tolist()]))
    cuts = [chances.cut_off(level, wrong_at_most) for level in range(len(found))]
    places = {name: place for place, name in enumerate(names)}
    answers = []
    for row, likeliest in enumerate(kinds):
        sure = Sure(None, None, float(best[row]), wrong_at_most)
        for level, (chance, labels) in enumerate(found):
            if chance[row] >= cuts[level]:
                sure = Sure(labels[row], level, min(float(chance[row]), 1.0), wrong_at_most)
                break
        answers.append(Told(likeliest, min(float(known[row]), 1.0), sure, likely[row], places))
    return answers


def _likeliest(shares: FloatArray, names: list[str]) -> Kinds:
    few = np.argpartition(-shares, min(SHOWN_KINDS, len(shares)) - 1)[:SHOWN_KINDS]
    best = few[np.lexsort((few, -shares[few]))].tolist() if len(shares) else []
    return tuple((names[place], float(shares[place])) for place in best)
