"""Advice on the length of codes: evaluated runs and a gallery size in, costs and quality out.

Every number is measured (MAP, distinct codes, search time), or computed by a rule given here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import timeit

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, group_codes
from phpq.config import CONFIG_FILE
from phpq.errors import ConfigError, DataError
from phpq.evaluation.coded import FOLDER
from phpq.evaluation.run import METRICS
from phpq.files import read_json
from phpq.gallery._part import find_part
from phpq.gallery.of_run import open_run
from phpq.gallery.shards import part_labels
from phpq.index import CodeIndex

TIMED_ROWS = 2_000_000  # at most, that a search is timed on
TIMED_QUERIES = 32
COMMON_BITS = (16, 32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAdvice:
    """Costs and quality of one run's codes for a gallery of a given size."""

    run: str  # its folder
    bits: int  # of a code
    bytes_per_image: int  # of a code (computed)
    map_percent: float  # of the run's evaluation (measured)
    images: int  # of that evaluation's gallery
    distinct_codes: int  # among them (measured)
    expected_distinct: int  # in a gallery of the size (computed, `expected_distinct`)
    images_per_code: float  # size / expected_distinct (computed): how many tie on average
    search_ms: float  # per query, top 10, one thread (measured on synthetic codes, `draw_codes`)
    timed_rows: int  # of that measurement
    memory_bytes: int  # of codes and index (measured at `timed_rows`, scaled to the size)


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the evaluated runs among `folders`, and directly inside the others."""
    runs: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / CONFIG_FILE).is_file() else sorted(folder.glob("*/"))
        found = [run for run in inside if (run / FOLDER / METRICS).is_file()]
        if not found:
            raise DataError(
                f"There is no evaluated run in {str(folder)!r}. Train and evaluate one: "
                f"phpq train SOURCE --bits 32, then phpq evaluate RUN"
            )
        runs += found
    return runs


def advise_run(run: Path, size: int) -> CodeAdvice:
    """Measure and compute costs and quality of a run's codes for `size` images."""
    from phpq.model import load

    if size < 1:
        raise ConfigError(f"size={size} is not allowed: it must be at least 1.")
    model = load(run, device="cpu")
    part = find_part(open_run(run, model))
    codes, labels = part.codes(), part_labels(part)[1].astype(np.int64)
    metrics = read_json(run / FOLDER / METRICS, remedy=f"Make it with: phpq evaluate {run}")
    codebooks = model.codebooks
    sizes = group_codes(codes).sizes
    expected = expected_distinct(sizes, size, most=2**codebooks.bits)
    rows = min(size, TIMED_ROWS)
    generator = np.random.default_rng(0)
    index = CodeIndex(codebooks, draw_codes(codes, rows, generator)).build()
    queries = draw_queries(codebooks, codes, labels, generator)
    return CodeAdvice(
        run=str(run),
        bits=codebooks.bits,
        bytes_per_image=-(-codebooks.bits // 8),
        map_percent=float(metrics["map"][str(codebooks.bits)]),
        images=len(codes),
        distinct_codes=len(sizes),
        expected_distinct=round(expected),
        images_per_code=size / max(expected, 1),
        search_ms=_time_search(index, queries),
        timed_rows=rows,
        memory_bytes=round(index.memory_bytes() * size / rows),
    )


def expected_distinct(sizes: IntArray, size: int, *, most: float) -> float:
    """Estimate how many distinct codes `size` images have, from a sample.

    Inside the sample by rarefaction (images drawn without replacement), beyond it by Chao's
    extrapolation with the Chao1 estimate of the unseen codes, a lower bound. `sizes` are the images
    of each distinct code of the sample; there are `most` codes, 2 ** bits.
    """
    seen, images = len(sizes), int(sizes.sum())
    if size <= images:
        # P(a code of n images is missed) = C(N - n, size) / C(N, size), by logarithms.
        gammaln = np.vectorize(math.lgamma, otypes=[float])
        left = images - sizes - size
        possible = left >= 0
        logs = (
            gammaln(images - sizes[possible] + 1)
            - gammaln(left[possible] + 1)
            - gammaln(images + 1)
            + gammaln(images - size + 1)
        )
        return float(seen - np.exp(logs).sum())
    once, twice = int((sizes == 1).sum()), int((sizes == 2).sum())
    if not once:
        return float(seen)
    unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
    unseen *= (images - 1) / images
    share = 1 - np.exp(-(size - images) * once / (images * unseen + once))
    return float(min(seen + unseen * share, size, most))


def draw_codes(codes: CodeArray, rows: int, generator: np.random.Generator) -> CodeArray:
    """Draw synthetic codes (rows, M) uint8 that repeat like those of a sample (N, M).

    Rows are drawn with replacement. With the probability of an unseen code, which is the share of
    codes that occur once (Good-Turing), one byte is taken from another row.
    """
    groups = group_codes(codes)
    new_share = float((groups.sizes == 1).sum() / len(codes))
    drawn = codes[generator.integers(len(codes), size=rows)]
    changed = np.flatnonzero(generator.random(rows) < new_share)
    books = generator.integers(codes.shape[1], size=len(changed))
    donors = generator.integers(len(codes), size=len(changed))
    drawn[changed, books] = codes[donors, books]
    return drawn


def draw_queries(
    codebooks: Codebooks, codes: CodeArray, labels: IntArray, generator: np.random.Generator
) -> FloatArray:
    """Draw (TIMED_QUERIES, D) queries between two images of a class, nearer to the first."""
    first = generator.integers(len(codes), size=TIMED_QUERIES)
    second = [generator.choice(np.flatnonzero(labels == labels[row])) for row in first]
    near, far = codebooks.decode(codes[first]), codebooks.decode(codes[np.asarray(second)])
    return near * np.float32(0.7) + far * np.float32(0.3)


def _time_search(index: CodeIndex, queries: FloatArray) -> float:
    """Return the median milliseconds of one query at a time, on one thread."""
    index.search(queries[:1], 10, threads=1)  # compiles on first use
    searches = (partial(index.search, query[None], 10, threads=1) for query in queries)
    return float(1000 * np.median([timeit(search, number=1) for search in searches]))
