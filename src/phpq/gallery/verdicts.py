"""What a gallery says a photo shows: queries and a filter in, kinds, chances and a name out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phpq.additive import AdditiveCodebooks, ancestors, group_numbers, group_shares, softmax
from phpq.codes import FloatArray, IntArray
from phpq.hits import SHOWN_KINDS, Kinds, Sure


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
    books: AdditiveCodebooks, queries: FloatArray, passing: IntArray, wrong_at_most: float | None
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
    levels = [(best, [names[place] for place in likely.argmax(axis=1).tolist()])]
    for level, (share, parents) in enumerate(_parents(books, everything, passing), start=1):
        levels.append((chances.parent(level, anyhow, share), parents))
    cuts = [chances.cut_off(level, wrong_at_most) for level in range(len(levels))]
    places = {name: place for place, name in enumerate(names)}
    answers = []
    for row, found in enumerate(kinds):
        sure = Sure(None, None, float(best[row]), wrong_at_most)
        for level, (chance, labels) in enumerate(levels):
            if chance[row] >= cuts[level]:
                sure = Sure(labels[row], level, min(float(chance[row]), 1.0), wrong_at_most)
                break
        answers.append(Told(found, min(float(known[row]), 1.0), sure, likely[row], places))
    return answers


def _parents(
    books: AdditiveCodebooks, shares: FloatArray, passing: IntArray
) -> Iterator[tuple[NDArray[np.float64], list[str]]]:
    """Yield for each level the share (Q,) of each query's likeliest parent, and its name.

    Of those to which something belongs that passes the filter.
    """
    real = set(books.parents.values())
    for names in ancestors(books.class_names, books.parents):
        groups, numbers = group_numbers(names)
        sums = group_shares(shares, numbers, len(groups))
        there = real.intersection(names[place] for place in passing.tolist())
        sums[:, [name not in there for name in groups]] = 0
        yield sums.max(axis=1), [groups[place] for place in sums.argmax(axis=1).tolist()]


def _likeliest(shares: FloatArray, names: list[str]) -> Kinds:
    few = np.argpartition(-shares, min(SHOWN_KINDS, len(shares)) - 1)[:SHOWN_KINDS]
    best = few[np.lexsort((few, -shares[few]))].tolist() if len(shares) else []
    return tuple((names[place], float(shares[place])) for place in best)
