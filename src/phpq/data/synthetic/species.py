"""What tells the drawn species apart: small local marks, and nothing else.

A species is one value per mark. Species come in families of four look-alikes, which share all marks
but one with the first of them, so that telling them apart needs a look at one small place.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from phpq.errors import DataError

FAMILY_SIZE = 4


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one species; every field holds one of `VALUES` of its name."""

    eye_ring: str
    eye_stripe: str
    crown: str
    beak: str
    throat: str
    breast: str
    wing_bars: str
    tail_band: str


VALUES: dict[str, tuple[str, ...]] = {
    "eye_ring": ("none", "white", "yellow", "red"),
    "eye_stripe": ("none", "white", "black"),
    "crown": ("none", "red", "black", "yellow"),
    "beak": tuple(
        f"{shape} {colour}"
        for shape in ("short", "long", "hooked")
        for colour in ("dark", "orange", "yellow")
    ),
    "throat": ("none", "black", "red"),
    "breast": ("none", "dark streaks", "rufous streaks", "dark spots", "dark bars", "rufous bars"),
    "wing_bars": ("none", "1 white", "2 white", "1 yellow", "2 yellow", "1 black", "2 black"),
    "tail_band": ("none", "white", "black", "yellow"),
}

MOST_SPECIES = 20_000  # of about 220,000 combinations: drawing without repeats stays quick

_FAMILIES = (
    "Bunting Chat Finch Flycatcher Grosbeak Jay Kinglet Lark Nuthatch Oriole Pipit Redstart Robin "
    "Shrike Siskin Sparrow Starling Tanager Thrush Tit Vireo Wagtail Warbler Waxwing Wren"
)
_WORDS = {
    "eye_ring": "eyed",
    "eye_stripe": "browed",
    "crown": "crowned",
    "beak": "billed",
    "throat": "throated",
    "breast": "breasted",
    "wing_bars": "winged",
    "tail_band": "tailed",
}
_PATTERNS = {"streaks": "streaked", "spots": "spotted", "bars": "breast_barred"}


@dataclass(frozen=True, slots=True)
class Species:
    """A drawn species."""

    name: str  # unique, as in "007.Red_crowned_Finch", after what tells it from its family's first
    marks: Marks


def draw_species(num_species: int, *, seed: int) -> tuple[Species, ...]:
    """Invent species of distinct marks, four to a family; a longer list begins the same."""
    if not 1 <= num_species <= MOST_SPECIES:
        raise DataError(f"num_species={num_species} must be from 1 to {MOST_SPECIES}.")
    rng = random.Random(f"plumage species {seed}")
    families = rng.sample(_FAMILIES.split(), len(_FAMILIES.split()))
    seen: set[Marks] = set()
    drawn: list[Species] = []
    base = _any_marks(rng)
    while len(drawn) < num_species:
        position = len(drawn)
        told_by = rng.choice(tuple(VALUES))
        if position % FAMILY_SIZE == 0:
            marks = base = _any_marks(rng)
        else:
            marks = replace(base, **{told_by: rng.choice(VALUES[told_by])})
        if marks not in seen:
            seen.add(marks)
            family = families[position // FAMILY_SIZE % len(families)]
            name = f"{position:03d}.{_epithet(marks, told_by)}_{family}"
            drawn.append(Species(name, marks))
    return tuple(drawn)


def _any_marks(rng: random.Random) -> Marks:
    return Marks(**{mark: rng.choice(values) for mark, values in VALUES.items()})


def _epithet(marks: Marks, told_by: str) -> str:
    """Name a mark as field guides do: "Red_crowned", "Rufous_streaked", "White_double_barred"."""
    value = str(getattr(marks, told_by))
    word = _WORDS[told_by]
    if value == "none":
        return f"Plain_{word}"
    if told_by == "breast":
        colour, kind = value.split()
        return f"{colour}_{_PATTERNS[kind]}".capitalize()
    if told_by == "wing_bars":
        count, colour = value.split()
        return f"{colour}_{'double_' if count == '2' else ''}barred".capitalize()
    return f"{value.replace(' ', '_')}_{word}".capitalize()
