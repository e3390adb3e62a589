"""What a gallery says a photo shows: queries and a filter in, kinds, chances and a name out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phpq.additive import AdditiveCodebooks, levels, softmax
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
