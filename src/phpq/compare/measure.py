"""Rivals in, the numbers of their rows out: quality on real images, speed and bytes at any size.

Quality is measured over the real gallery. Speed is timed at the requested size, all rows in turns;
a row that would take too much memory or time is timed with fewer rows, which the result says.
Where the time of a search does not depend on the rows, a part of a very large gallery is encoded.
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
from phpq.compare.engines import Engine, Footprint, single_block
from phpq.compare.rivals import Build, Rival
from phpq.compare.spaces import Images, Space, synthetic_rows
from phpq.evaluation.protocol import evaluate_scores
from phpq.evaluation.timing import available_cores, search_float, time_in_turns

RECALL_HITS = 10  # first hits that are compared with those of float search
TOP_K = 10  # hits of a timed search
REPEATS = 3
_TIMED_SECONDS = 0.1  # of a timed call, about
_MOST_QUERIES, _LEAST_QUERIES = 1024, 16  # of a timed call
_BUILD_SHARE = 0.7  # of the time, for building; the rest is for searching
_SHRINK_FACTOR = 10  # by which the rows are reduced until they fit
ENCODED = 1_000_000  # rows that are encoded at most where an engine can grow without floats
_GROWN_SECONDS = 1e-6  # for each of the other rows, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed and bytes of one row at one size of the gallery."""

    rows: int  # that were timed
    asked: int  # rows that were requested; more than `rows` if these did not fit
    encoded: int  # of `rows`; the codes of the others repeat theirs
    memory: float  # bytes per image at `asked` rows, extrapolated if these did not fit
    disk: float  # likewise
    one_thread: float  # queries per second
    all_threads: float
    build_seconds: float  # of `rows`, fitting included; reckoned if fewer were encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table; shares in per cent, None where there is nothing to measure."""

    name: str
    group: str
    space: str  # the embedding
    dim: int
    uses_labels: bool  # of the gallery
    learning_labels: str  # that the embedding was learned from
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
    """A rival, built over the real gallery and measured."""

    rival: Rival
    build: Build
    fit_seconds: float
    add_seconds: float
    footprint: Footprint
    row: Row


@dataclass(slots=True)
class Budget:
    """What is left for timing at one size; later rows may use what earlier ones did not."""

    memory: float  # bytes of the indexes that are timed in turns, and of each of them
    seconds: float  # to build all of them
    left: int  # rows that are still to be built
    disk: float = 4e9  # bytes of floats that one row may keep

    def allows(self, memory: float, disk: float, seconds: float) -> bool:
        """Tell whether a row fits; it may take up to three times its share of the seconds."""
        return (
            memory <= self.memory
            and disk <= self.disk
            and seconds <= 3 * _BUILD_SHARE * self.seconds / max(self.left, 1)
        )

    def take(self, seconds: float) -> None:
        """Subtract what a row took."""
        self.seconds -= seconds
        self.left -= 1


@dataclass(slots=True, eq=False)
class _Placed:
    """A rival, built at some size; its engine is dropped once it is timed."""

    engine: Engine | None
    rows: int
    encoded: int  # rows of which there were floats
    footprint: Footprint
    fit_seconds: float
    build_seconds: float  # for `rows`; reckoned where only `encoded` were
    each: float  # measured seconds per encoded row
    one_thread: float = 0.0
    all_threads: float = 0.0

    def speed(self, asked: int) -> Speed:
        """Return the numbers of a requested size."""
        weight = self.footprint
        return Speed(
            rows=self.rows,
            asked=asked,
            encoded=self.encoded,
            memory=weight.memory_at(asked, of=self.rows) / asked,
            disk=weight.disk_at(asked, of=self.rows) / asked,
            one_thread=self.one_thread,
            all_threads=self.all_threads,
            build_seconds=self.fit_seconds + self.build_seconds,
        )


Timed = dict[int, _Placed]  # by the number of the row, at the largest size so far


def build_and_measure(rival: Rival, images: Images, file: Path) -> Built:
    """Fit a rival to the real gallery, build it and measure its quality."""
    space, labels = rival.space, images.gallery
    started = time.perf_counter()
    build = rival.fit(space.gallery, labels, len(labels))
    fitted = time.perf_counter()
    engine = build(lambda: single_block(space.gallery, labels), file)
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
    return Built(rival, build, fitted - started, added - fitted, engine.footprint(), row)


def _with_quality(row: Row, engine: Engine, space: Space, images: Images) -> Row:
    gallery = space.float_rows(space.gallery)
    shares: list[FloatArray] = []
    found: dict[str, Any] = {}
    for prefix, chosen in (("", images.seen_queries), ("unseen_", images.unseen_queries)):
        if not len(chosen):
            continue
        queries = space.queries[chosen]
        wanted = search_float(space.float_queries(queries), gallery, top_k=RECALL_HITS).ids

        def score(
            part: slice, queries: FloatArray = queries, wanted: IntArray = wanted
        ) -> FloatArray:
            scores = engine.scores(queries[part])
            shares.append(expected_recall(scores, wanted[part]))
            return scores

        scores = evaluate_scores(
            score, images.queries[chosen], gallery_labels=images.gallery, cutoffs=(RECALL_HITS,)
        )
        if scores.queries:
            found[f"{prefix}r1"] = 100 * scores.recall_at[1]
            found[f"{prefix}map"] = scores.map_percent
            found[f"{prefix}p10"] = 100 * scores.precision_at[RECALL_HITS]
    found.pop("unseen_p10", None)
    return replace(row, float_recall=100 * float(np.concatenate(shares).mean()), **found)


def expected_recall(scores: FloatArray, wanted: IntArray) -> FloatArray:
    """Return (q,) the share of `wanted` rows (q, k) among the first k, ties in random order.

    A row with g better scores and e equal ones, its own included, is among the first k with
    probability (k - g) / e, clipped to [0, 1]. Scores are (q, N).
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
    built: Sequence[Built],
    images: Images,
    rows: int,
    folder: Path,
    budget: Budget,
    timed: Timed | None = None,
) -> list[Speed]:
    """Build every rival at a size, or at a smaller one that fits, and time all of them in turns.

    Where they do not fit into memory together, as many as fit take turns. `timed` carries what was
    measured from one size to the next, larger one: a row that does not fit is not timed again.
    """
    timed = {} if timed is None else timed
    waiting: list[tuple[Space, _Placed]] = []
    for number, one in enumerate(built):
        before = timed.get(number)
        count = _rows_that_fit(one, rows, images.gallery, budget, before)
        if before is not None and count <= before.rows:
            budget.take(0)
            continue
        held = sum(placed.footprint.memory for _, placed in waiting)
        if held + one.footprint.memory_at(count, of=len(images.gallery)) > budget.memory:
            _time_in_turns(waiting)
        started = time.perf_counter()
        timed[number] = _place(one, images, count, folder / f"{rows}-{number}.float16")
        budget.take(time.perf_counter() - started)
        waiting.append((one.rival.space, timed[number]))
    _time_in_turns(waiting)
    return [timed[number].speed(rows) for number in range(len(built))]


def _place(one: Built, images: Images, count: int, file: Path) -> _Placed:
    """Build a rival with `count` rows; what repeats them costs no time to speak of."""
    space, build, real = one.rival.space, one.build, len(images.gallery)
    encoded = min(count, max(ENCODED, real)) if one.rival.grows else count
    fit_seconds = one.fit_seconds
    read = partial(synthetic_rows, space.gallery, images.gallery, encoded)
    started = time.perf_counter()
    if count != real:
        build = one.rival.fit(space.gallery, images.gallery, count)
        fit_seconds = time.perf_counter() - started
        started = time.perf_counter()
    with blas_threads(1):  # codes are made in threads
        engine = build(read, file)
    seconds = time.perf_counter() - started
    if encoded < count:
        engine.grow(count)
    return _Placed(
        engine=engine,
        rows=engine.rows,
        encoded=encoded,
        footprint=engine.footprint(),
        fit_seconds=fit_seconds,
        build_seconds=seconds * count / encoded,
        each=seconds / encoded,
    )


def _time_in_turns(waiting: list[tuple[Space, _Placed]]) -> None:
    """Time engines in turns, on one thread and on all, and let go of them."""
    turns = [_timed(space, placed.engine) for space, placed in waiting if placed.engine]
    for threads in (1, available_cores()):
        with blas_threads(1):
            calls = [partial(search, threads) for search, _ in turns]
            times = time_in_turns(calls, REPEATS)
        for (_, placed), (_, count), took in zip(waiting, turns, times, strict=True):
            if threads == 1:
                placed.one_thread = placed.all_threads = count / took
            else:
                placed.all_threads = count / took
    for _, placed in waiting:
        placed.engine = None
    waiting.clear()


def _rows_that_fit(
    one: Built, rows: int, labels: IntArray, budget: Budget, before: _Placed | None
) -> int:
    """Return how many rows of a rival fit: the requested ones, or ten times fewer, and so on.

    What a smaller size took tells it best; the real gallery has to do for the first.
    """
    count, real, space = rows, len(labels), one.rival.space
    footprint, of = one.footprint, real
    if before is not None:
        footprint, of, each = before.footprint, before.rows, before.each
    else:
        made = _synthesis_seconds(space, labels) if rows > real else 0.0
        each = one.add_seconds / real + made
    while count > real:
        encoded = min(count, max(ENCODED, real)) if one.rival.grows else count
        disk = 2.0 * count * space.gallery.shape[1] if one.rival.reranked else 0.0
        seconds = one.fit_seconds + each * encoded + _GROWN_SECONDS * (count - encoded)
        if budget.allows(footprint.memory_at(count, of=of), disk, seconds):
            return count
        count = max(real, count // _SHRINK_FACTOR)
    return min(count, rows)


def _synthesis_seconds(space: Space, labels: IntArray) -> float:
    """Return the time to make one synthetic row."""
    blocks = synthetic_rows(space.gallery, labels, len(labels) + 4000)
    next(blocks)
    started = time.perf_counter()
    made = next(blocks)
    return (time.perf_counter() - started) / len(made[0])


def _timed(space: Space, engine: Engine) -> tuple[Callable[[int], object], int]:
    """Return a search of about `_TIMED_SECONDS`, and how many queries it has."""

    def repeated(count: int) -> FloatArray:
        return np.resize(space.queries, (count, space.queries.shape[1]))

    queries = repeated(_LEAST_QUERIES)
    engine.search(queries, TOP_K, threads=1)  # warm-up
    started = time.perf_counter()
    engine.search(queries, TOP_K, threads=1)
    each = max((time.perf_counter() - started) / len(queries), 1e-7)
    count = int(np.clip(_TIMED_SECONDS / each, _LEAST_QUERIES, _MOST_QUERIES))
    queries = repeated(count)
    return (lambda threads: engine.search(queries, TOP_K, threads=threads)), count


@contextmanager
def blas_threads(count: int) -> Iterator[bool]:
    """Set the threads of numpy's OpenBLAS for a while; yields False if numpy uses another library.

    Searches have threads of their own, each of which must multiply with one.
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
