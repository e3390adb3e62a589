"""The cost model of a large gallery: what was measured in, memory, times and costs out.

N rows of C classes, r = N / C rows per class, M bytes per code:

    distinct codes   G(N, r) = C d(r), d being one curve for all sizes (log-log between its points)
    memory           phpq.index.engine.part_layout(N, G): exact, given G
    search           T(N, r) = t0(r) + c(r) N: for each r straight from one measured size to the
                     next, and straight on beyond the last; between numbers of r by logarithms

Why straight: the cells that a query walks depend on its lookup table and on how far away its 100th
best row is, which is a matter of r; the entries in those cells are a share of G, and at the same r
that grows with N. Where no code repeats, every entry is scanned, which is a line too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phpq.index.engine import most_bytes, part_layout

RANDOM = 0  # "rows per class" of codes that never repeat
CHECKED = 10_000_000  # what is larger is predicted from what is not
ROW_NUMBER = 8  # bytes per row that a gallery keeps beside its index, int64


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity that grows with the rows: straight between and beyond its (rows, value)."""

    points: tuple[tuple[float, float], ...]

    def line(self, rows: float) -> tuple[float, float]:
        """Return start and slope of the piece for a number of rows; it never falls."""
        place = sum(1 for known, _ in self.points[1:-1] if known <= rows)
        (first, low), (last, high) = self.points[place], self.points[place + 1]
        slope = max(0.0, (high - low) / (last - first))
        return low - slope * first, slope

    def at(self, rows: float) -> float:
        """Return the value for a number of rows."""
        start, slope = self.line(rows)
        first, low = self.points[0]
        if rows < first and start < 0:  # straight to nothing, not below it
            return low * rows / first
        return start + slope * rows


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the value at x of straight pieces in logarithms; the outer ones go on."""
    ordered = sorted(points)
    if len(ordered) == 1:
        return ordered[0][1]
    place = sum(1 for known, _ in ordered[1:-1] if known <= x)
    (x0, y0), (x1, y1) = ordered[place], ordered[place + 1]
    share = (math.log(x) - math.log(x0)) / (math.log(x1) - math.log(x0))
    return math.exp(math.log(y0) + share * (math.log(y1) - math.log(y0)))


@dataclass(frozen=True)
class CostModel:
    """Fitted to measurements of `benchmarks/scale.py`."""

    num_codebooks: int
    curve: tuple[tuple[float, float], ...]  # rows per class, distinct codes per class
    search: dict[int, Growth]  # by rows per class: mean ms of a query
    build: dict[int, Growth]  # likewise: seconds

    @classmethod
    def fit(
        cls, cases: Sequence[dict[str, Any]], num_codebooks: int, *, largest: float = math.inf
    ) -> CostModel:
        """Fit to the cases of at most `largest` rows; each number of rows per class needs two."""
        known = [case for case in cases if case["rows"] <= largest and case["m"] == num_codebooks]
        curve: dict[float, float] = {}
        found: dict[str, dict[int, Growth]] = {"mean_ms": {}, "build_s": {}}
        for path in sorted({case["rows_per_class"] for case in known}):
            mine = [case for case in known if case["rows_per_class"] == path]
            mine.sort(key=lambda case: int(case["rows"]))
            for name, growths in found.items():
                growths[path] = Growth(tuple((case["rows"], case[name]) for case in mine))
            if path != RANDOM:
                curve[path] = mine[-1]["distinct"] / mine[-1]["classes"]
        return cls(num_codebooks, tuple(sorted(curve.items())), found["mean_ms"], found["build_s"])

    def distinct(self, rows: float, rows_per_class: float) -> float:
        """Return the distinct codes of a gallery."""
        if rows_per_class == RANDOM:
            return rows
        each = interpolate(self.curve, rows_per_class)
        return min(rows, each * rows / rows_per_class)

    def memory_bytes(self, rows: float, rows_per_class: float) -> int:
        """Return the bytes of an index."""
        distinct = round(self.distinct(rows, rows_per_class))
        layout = part_layout(round(rows), distinct, num_codebooks=self.num_codebooks)
        return layout.memory_bytes

    def most_bytes(self, rows: float) -> int:
        """Return what an index takes at most, however its codes repeat."""
        return most_bytes(round(rows), num_codebooks=self.num_codebooks)

    def search_ms(self, rows: float, rows_per_class: float) -> float:
        """Return the mean ms of a query on one thread, top-100.

        Below the lowest measured number of rows per class it goes towards codes that never repeat;
        above the highest it stays.
        """
        return _between(self.search, rows, rows_per_class)

    def build_s(self, rows: float, rows_per_class: float) -> float:
        """Return the seconds in which an index is built on one thread."""
        return _between(self.build, rows, rows_per_class)


def _between(growths: dict[int, Growth], rows: float, rows_per_class: float) -> float:
    # One row a class is codes that never repeat.
    known = [(max(1.0, float(path)), growth.at(rows)) for path, growth in growths.items()]
    place = min(max(rows_per_class, 1.0), max(path for path, _ in known))
    return interpolate(known, place)


@dataclass(frozen=True, slots=True)
class Shards:
    """A gallery that is spread over shards, each with a part of every class.

    Attributes:
        shards: S.
        rows: Of one shard.
        rows_per_class: Of one shard: 1 / S of the whole gallery's.
        memory_bytes: Of one shard: index and row numbers.
        search_ms: Of one shard, mean, one thread.
        merged: Entries that the router merges, S k.
    """

    shards: int
    rows: float
    rows_per_class: float
    memory_bytes: int
    search_ms: float
    merged: int


def spread(
    model: CostModel, rows: float, rows_per_class: float, shards: int, *, top_k: int = 100
) -> Shards:
    """Return what each shard of a gallery costs; a query asks all of them at once."""
    each, own = rows / shards, rows_per_class / shards
    memory = model.memory_bytes(each, own) + round(ROW_NUMBER * each)
    return Shards(shards, each, own, memory, model.search_ms(each, own), shards * top_k)
