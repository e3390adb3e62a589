"""Rivals in, the numbers of their rows out: quality on real images, speed and weight at any size.

Every row is built over the real gallery and measured there. Speed is timed at the size that was
asked for, all rows in turns; a row that would take too much memory or time is timed smaller, and
says so.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phpq.codes import FloatArray, IntArray
from phpq.compare.engines import Engine, Weight, whole
from phpq.compare.rivals import Make, Rival
from phpq.compare.spaces import Images, Space, made_rows
from phpq.evaluation.protocol import evaluate_scores
from phpq.evaluation.timing import available_cores, search_float, time_in_turns

FIRST = 10  # hits, of which float search says which are right
TOP_K = 10  # hits that a timed search returns
REPEATS = 3
_TIMED_SECONDS = 0.1  # that a timed call takes, about
_MOST_QUERIES, _LEAST_QUERIES = 1024, 16
_BUILD_SHARE = 0.7  # of the time, for building; the rest is for searching
_SMALLER = 10  # times fewer rows, where a size does not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one row does at one size of the gallery."""

    rows: int  # that were timed
    asked: int  # rows that were asked for; more than `rows` if those did not fit
    memory: float  # bytes per image at `asked` rows: counted, or reckoned where they did not fit
    disk: float  # likewise
    one_thread: float  # queries per second
    all_threads: float
    build_seconds: float  # of `rows`, fitting included


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table; shares in per cent, None where there is nothing to measure."""

    name: str
    group: str
    space: str  # the embedding
    dim: int
    uses_labels: bool  # of the gallery
    learning_labels: str  # that learning the embedding took
    learning_minutes: float | None
    r1: float | None = None  # queries of learned classes, in a gallery of all
    p10: float | None = None
    map: float | None = None
    unseen_r1: float | None = None  # queries of other classes, in the same gallery
    unseen_map: float | None = None
    float_recall: float  # share of float search's first ten that is among the first ten
    speeds: tuple[Speed, ...] = ()  # by size
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A rival over the real gallery, and what that took."""

    rival: Rival
    make: Make
    fit_seconds: float
    add_seconds: float
    weight: Weight
    row: Row


@dataclass(slots=True)
class Budget:
    """What timing at one size may use; what a row leaves, later rows may take."""

    memory: float  # bytes of all indexes together: they are timed in turns
    seconds: float  # to build all of them
    left: int  # rows that are to come
    disk: float = 4e9  # bytes of floats that one row keeps

    def allows(self, memory: float, disk: float, seconds: float) -> bool:
        """Say whether a row may take so much; nobody gets more than three times his share."""
        return (
            memory <= self.memory
            and disk <= self.disk
            and seconds <= 3 * _BUILD_SHARE * self.seconds / max(self.left, 1)
        )

    def take(self, memory: float, seconds: float) -> None:
        """Count what a row took."""
        self.memory -= memory
        self.seconds -= seconds
        self.left -= 1


def build_and_measure(rival: Rival, images: Images, file: Path) -> Built:
    """Fit a rival to the real gallery, build it and measure what it finds."""
    space, labels = rival.space, images.gallery
    started = time.perf_counter()
    make = rival.fit(space.gallery, labels, len(labels))
    fitted = time.perf_counter()
    engine = make(lambda: whole(space.gallery, labels), file)
    added = time.perf_counter()
    row = Row(
        name=rival.name,
        group=rival.group,
        space=space.name,
        dim=space.gallery.shape[1],
        uses_labels=rival.uses_labels,
        learning_labels=space.labels,
        learning_minutes=space.minutes,
        float_recall=0.0,
    )
    row = _with_quality(row, engine, space, images)
    return Built(rival, make, fitted - started, added - fitted, engine.weigh(), row)


def _with_quality(row: Row, engine: Engine, space: Space, images: Images) -> Row:
    gallery = space.place_rows(space.gallery)
    shares: list[FloatArray] = []
    found: dict[str, Any] = {}
    for prefix, asking in (("", images.seen_queries), ("unseen_", images.unseen_queries)):
        if not len(asking):
            continue
        queries = space.queries[asking]
        wanted = search_float(space.place_queries(queries), gallery, top_k=FIRST).ids

        def score(
            part: slice, queries: FloatArray = queries, wanted: IntArray = wanted
        ) -> FloatArray:
            scores = engine.scores(queries[part])
            shares.append(expected_recall(scores, wanted[part]))
            return scores

        scores = evaluate_scores(
            score, images.queries[asking], gallery_labels=images.gallery, cutoffs=(FIRST,)
        )
        if scores.queries:
            found[f"{prefix}r1"] = 100 * scores.recall_at[1]
            found[f"{prefix}map"] = scores.map_percent
            found[f"{prefix}p10"] = 100 * scores.precision_at[FIRST]
    found.pop("unseen_p10", None)
    return replace(row, float_recall=100 * float(np.concatenate(shares).mean()), **found)


def expected_recall(scores: FloatArray, wanted: IntArray) -> FloatArray:
    """Return (q,) the share of wanted rows (q, k) that is among the first k, ties in random order.

    A wanted row that g rows outscore and e rows, itself one, equal, is among the first k with the
    chance (k - g) / e, between 0 and 1. Scores are (q, N).
    """
    count = wanted.shape[1]
    total = np.zeros(len(scores))
    for place in range(count):
        own = np.take_along_axis(scores, wanted[:, place, None], axis=1)
        better, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
        total += np.clip((count - better) / equal, 0, 1)
    result: FloatArray = (total / count).astype(np.float32)
    return result


def time_rows(
    built: Sequence[Built], images: Images, rows: int, folder: Path, budget: Budget
) -> list[Speed]:
    """Build every rival at a size, or at a smaller one that fits, and time all of them in turns."""
    engines: list[Engine] = []
    seconds: list[float] = []
    for number, one in enumerate(built):
        count = _fitting(one, rows, images.gallery, budget)
        space = one.rival.space
        fresh = _gallery(space, images.gallery, count)
        started = time.perf_counter()
        make = one.make
        if count != len(images.gallery):
            make = one.rival.fit(space.gallery, images.gallery, count)
        engines.append(make(fresh, folder / f"{rows}-{number}.float16"))
        seconds.append(time.perf_counter() - started)
        budget.take(engines[-1].weigh().memory, seconds[-1])
    turns = [_timed(one.rival.space, engine) for one, engine in zip(built, engines, strict=True)]
    cores = available_cores()
    rates: list[list[float]] = []
    for threads in (1, cores):
        with blas_threads(1):
            calls = [partial(search, threads) for search, _ in turns]
            times = time_in_turns(calls, REPEATS)
        rates.append([count / took for (_, count), took in zip(turns, times, strict=True)])
    speeds = []
    for number, (one, engine) in enumerate(zip(built, engines, strict=True)):
        weight, count = engine.weigh(), engine.rows
        speeds.append(
            Speed(
                rows=count,
                asked=rows,
                memory=weight.memory_at(rows, of=count) / rows,
                disk=weight.disk_at(rows, of=count) / rows,
                one_thread=rates[0][number],
                all_threads=rates[1][number],
                build_seconds=seconds[number]
                + (one.fit_seconds if count == len(images.gallery) else 0),
            )
        )
    return speeds


def _gallery(
    space: Space, labels: IntArray, count: int
) -> Callable[[], Iterator[tuple[FloatArray, IntArray]]]:
    return lambda: made_rows(space.gallery, labels, count)


def _fitting(one: Built, rows: int, labels: IntArray, budget: Budget) -> int:
    """Return how many rows of a rival fit: as asked, or ten times fewer, and so on."""
    count, real, space = rows, len(labels), one.rival.space
    each = one.add_seconds / real + _making_seconds(space, labels) if rows > real else 0.0
    while count > real:
        memory = one.weight.memory_at(count, of=real)
        disk = 2.0 * count * space.gallery.shape[1] if one.rival.rescored else 0.0
        if budget.allows(memory, disk, one.fit_seconds + each * count):
            return count
        count = max(real, count // _SMALLER)
    return min(count, rows)


def _making_seconds(space: Space, labels: IntArray) -> float:
    """Return the time that one made-up row takes."""
    blocks = made_rows(space.gallery, labels, len(labels) + 4000)
    next(blocks)
    started = time.perf_counter()
    made = next(blocks)
    return (time.perf_counter() - started) / len(made[0])


def _timed(space: Space, engine: Engine) -> tuple[Callable[[int], object], int]:
    """Return a search that takes about as long as every other, and how many queries it has."""

    def asked(count: int) -> FloatArray:
        return np.resize(space.queries, (count, space.queries.shape[1]))

    few = asked(_LEAST_QUERIES)
    engine.search(few, TOP_K, threads=1)  # compiles, and finds memory
    started = time.perf_counter()
    engine.search(few, TOP_K, threads=1)
    each = max((time.perf_counter() - started) / len(few), 1e-7)
    count = int(np.clip(_TIMED_SECONDS / each, _LEAST_QUERIES, _MOST_QUERIES))
    queries = asked(count)
    return (lambda threads: engine.search(queries, TOP_K, threads=threads)), count


@contextmanager
def blas_threads(count: int) -> Iterator[bool]:
    """Let numpy multiply in so many threads, where its library is known; yields whether it is.

    Searches share queries between threads of their own: more inside would be counted as one.
    """
    library = _openblas()
    if library is None:
        yield False
        return
    before = library.scipy_openblas_get_num_threads64_()
    library.scipy_openblas_set_num_threads64_(count)
    try:
        yield True
    finally:
        library.scipy_openblas_set_num_threads64_(before)


def _openblas() -> Any:
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in sorted(folder.glob("*scipy_openblas64_*")):
        library = ctypes.CDLL(str(path))  # the one that is loaded already
        if hasattr(library, "scipy_openblas_set_num_threads64_"):
            return library
    return None
