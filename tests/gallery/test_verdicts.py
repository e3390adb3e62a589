"""What a gallery says of photos, against plain loops over its classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from own_galleries import view_of
from phpq.additive import AdditiveCodebooks, softmax
from phpq.errors import ConfigError
from phpq.gallery.knowing import set_parents
from phpq.gallery.verdicts import tell
from phpq.gallery.view import Page
from phpq.hits import Sure
from sure_galleries import COLOURS, PARENTS, STRANGE, question, sure_store

ALL = np.arange(len(COLOURS))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> AdditiveCodebooks:
    store = sure_store(tmp_path_factory.mktemp("sure") / "g")
    set_parents(store, PARENTS)
    return store.own_codebooks()


def chances_by_hand(books: AdditiveCodebooks, kind: str) -> dict[str, float]:
    """Return the chance of every class."""
    assert books.chances is not None
    scores = books.kinds(question(kind))
    known = float(books.chances.known(scores, books.sharpness)[0])
    shares = softmax(books.sharpness * scores)[0].tolist()
    return {n: known * share for n, share in zip(books.class_names, shares, strict=True)}


@pytest.mark.parametrize("kind", [*COLOURS, *STRANGE])
@pytest.mark.parametrize("accepted", [0.0, 0.05, 0.4, 1.0])
def test_the_most_specific_name_that_is_sure(
    books: AdditiveCodebooks, kind: str, accepted: float
) -> None:
    (told,) = tell(books, question(kind), ALL, accepted)
    by_hand, chances = chances_by_hand(books, kind), books.chances
    assert chances is not None
    best = max(by_hand, key=by_hand.__getitem__)
    assert told.known == pytest.approx(sum(by_hand.values()))
    assert told.kinds is not None
    assert told.kinds[0][0] == best
    for name, chance in by_hand.items():
        assert told.chance(name) == pytest.approx(chance, abs=1e-6)
    assert told.chance(None) is None
    assert told.chance("no label") is None
    levels = [(best, by_hand[best])]
    known = sum(by_hand.values())
    for level, steps in enumerate(({}, {"red": "warm", "green": "cold"}), start=1):
        sums: dict[str, float] = {}
        for name, chance in by_hand.items():
            parent = PARENTS[name]
            parent = steps.get(parent, parent)
            sums[parent] = sums.get(parent, 0.0) + chance / known
        group = max(sums, key=sums.__getitem__)
        chance = chances.parent(level, np.array([known]), np.array([sums[group]]))[0]
        levels.append((group, float(chance)))
    expected = Sure(None, None, by_hand[best], accepted)
    for level, (name, chance) in enumerate(levels):
        if chance >= chances.cut_off(level, accepted):
            expected = Sure(name, level, chance, accepted)
            break
    assert told.sure is not None
    assert told.sure.probability == pytest.approx(expected.probability, abs=1e-4)
    assert replace(told.sure, probability=0) == replace(expected, probability=0)
    assert (accepted != 0.0) or told.sure.label is None
    assert (accepted != 1.0) or told.sure.label == best


def test_a_filter_leaves_chances_as_they_are(books: AdditiveCodebooks) -> None:
    by_hand = chances_by_hand(books, "red light")
    passing = np.array([place for place, n in enumerate(books.class_names) if n != "red light"])
    (told,) = tell(books, question("red light"), passing, 0.05)
    for name in by_hand.keys() - {"red light"}:
        assert told.chance(name) == pytest.approx(by_hand[name], abs=1e-6)
    assert told.chance("red light") is None
    assert told.sure is not None
    assert told.sure.label not in ("red light", "red dark")
    (told,) = tell(books, question("red light"), np.empty(0, np.int64), 0.05)
    assert (told.kinds, told.known, told.sure) == ((), None, None)


def test_without_probabilities_kinds_are_told_as_before(books: AdditiveCodebooks) -> None:
    query = question("red light")
    (told,) = tell(books, query, ALL, 0.05)
    (plain,) = tell(replace(books, chances=None), query, ALL, 0.05)
    assert plain.kinds == told.kinds
    assert (plain.known, plain.sure, plain.chance("red light")) == (None, None, None)


def test_hits_and_verdicts_of_a_search_carry_them(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    view = view_of(store)
    found = view.search(question("blue dark")[0], Page(top_k=60))
    verdict = found.verdict
    assert verdict is not None
    assert verdict.probability == pytest.approx(found[0].probability)
    for hit in found:
        assert hit.label is not None
        by_hand = chances_by_hand(store.own_codebooks(), "blue dark")
        assert hit.probability == pytest.approx(by_hand[hit.label], abs=1e-6)
    # Codebooks were fitted to the images of the gallery: how sure these are says nothing.
    place, record = view.find("red light/0/0")
    itself = view.search(view.query_of(record), Page(), leave_out=(place,))
    assert itself.verdict is not None
    assert (itself.verdict.sure, itself[0].probability) == (None, None)


def test_shares_are_between_none_and_all(tmp_path: Path) -> None:
    view = view_of(sure_store(tmp_path / "g"))
    for share in (-0.01, 1.01, float("nan"), 5):
        with pytest.raises(ConfigError, match=r"wrong_at_most=.* a share from 0 to 1"):
            view.search(question("red light")[0], Page(wrong_at_most=share))
