from __future__ import annotations

from dataclasses import astuple, fields

import pytest

from phpq.data.synthetic.species import FAMILY_SIZE, VALUES, Marks, draw_species
from phpq.errors import DataError


def test_species_are_distinct_and_named_apart() -> None:
    species = draw_species(3000, seed=0)
    assert len({one.marks for one in species}) == 3000
    assert len({one.name for one in species}) == 3000
    assert {field.name for field in fields(Marks)} == set(VALUES)
    for one in species[:200]:
        assert all(getattr(one.marks, mark) in values for mark, values in VALUES.items())


def test_look_alikes_differ_from_the_first_of_their_family_in_one_mark() -> None:
    species = draw_species(400, seed=3)
    for position, one in enumerate(species):
        first = species[position - position % FAMILY_SIZE]
        differing = [
            field.name
            for field, a, b in zip(
                fields(Marks), astuple(one.marks), astuple(first.marks), strict=True
            )
            if a != b
        ]
        assert len(differing) == (one is not first)


def test_more_species_leave_the_first_ones_as_they_are() -> None:
    assert draw_species(50, seed=1)[:10] == draw_species(10, seed=1)
    assert draw_species(10, seed=1) != draw_species(10, seed=2)


def test_names_read_like_a_field_guide() -> None:
    words = {one.name.split(".")[1] for one in draw_species(400, seed=0)}
    assert any("_crowned_" in word for word in words)
    assert not any("none" in word.lower() for word in words)


@pytest.mark.parametrize("count", [0, 20_001])
def test_the_number_is_limited(count: int) -> None:
    with pytest.raises(DataError, match=f"num_species={count} must be from 1 to 20000"):
        draw_species(count, seed=0)
