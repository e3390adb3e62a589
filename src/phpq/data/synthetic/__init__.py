"""Synthetic plumage: stylised birds whose species differ only in small local marks."""

from phpq.data.synthetic.dataset import (
    PlumageReader,
    mark_mask,
    open_plumage,
    plumage,
    write_plumage,
)
from phpq.data.synthetic.species import Marks, Species, draw_species

__all__ = [
    "Marks",
    "PlumageReader",
    "Species",
    "draw_species",
    "mark_mask",
    "open_plumage",
    "plumage",
    "write_plumage",
]
