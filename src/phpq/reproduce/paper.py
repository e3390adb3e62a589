"""The numbers of the paper, as printed, from `paper.toml`.

A row is named as the rows of our own grid, so that the two can be laid side by side. Where the
paper contradicts itself, the printed value and the one meant are both kept.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib import resources

BITS = (16, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table of the paper for one data set.

    Attributes:
        source: Where it stands.
        rows: Name of a row -> MAP at 16, 32, 48 and 64 bits, in per cent; NaN where the paper has
            a dash.
        offset: What is to be added to every printed cell; 0 almost everywhere.
        note: Why, and what else a reader must know; may be empty.
    """

    source: str
    rows: dict[str, list[float]]
    offset: float = 0.0
    note: str = ""

    def printed(self, row: str, bits: int) -> float | None:
        """Return a cell as it is printed; None where there is none."""
        values = self.rows.get(row)
        value = values[BITS.index(bits)] if values and bits in BITS else math.nan
        return None if math.isnan(value) else value

    def meant(self, row: str, bits: int) -> float | None:
        """Return a cell with the paper's own slip put right."""
        value = self.printed(row, bits)
        return None if value is None else round(value + self.offset, 2)


_TEXT = resources.files("phpq.reproduce").joinpath("paper.toml").read_text("utf-8")
_CONTENT = tomllib.loads(_TEXT)
# How many times faster than float search 1,000 queries are, by data set.
SPEED_UP: dict[str, float] = _CONTENT["speed_up"]
# Data set -> target -> table; the paper knows of two data sets.
PAPER: dict[str, dict[str, PaperTable]] = {
    dataset: {
        target: PaperTable(
            _CONTENT["sources"][target],
            rows,
            **_CONTENT["corrections"].get(dataset, {}).get(target, {}),
        )
        for target, rows in tables.items()
    }
    for dataset, tables in _CONTENT["tables"].items()
}
