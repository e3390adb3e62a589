"""Exact search beside faiss, in one run: ms per query, memory per row, and whether answers agree.

    python benchmarks/search.py                      # 1M and 10M rows; about half an hour
    python benchmarks/search.py --quick              # 200,000 rows; about a minute
    python benchmarks/search.py --rows 10000000 --classes 10000 --m 2 4 6 8 --threads 1 --json
    python benchmarks/search.py --codes labelled "new kinds" --m 8 --threads 1 --only-pq --json

Codes are (a) learned-like, see `learned_codes.py`, or as a model makes them of random crops of
images ("learned crops", 8 bytes), (b) uniform at random, or (c) those of a gallery's own codebooks,
with its labels ("labelled") or without ("new kinds"), of crops too, see `additive_codes.py`: 8
bytes, new codes of a large gallery put together within a photo, or within a class, which are its
least and its most disorder, and queries that are in the gallery ("held"), new photos of its classes
("new"), or of other classes ("strange"). A query is a float vector for every index: the codewords
are the unit vectors of the axes, so that the query's lookup table is the query itself and any table
can be given to faiss too; each index still computes it.
Times are medians, the indexes taking turns. On one thread a call holds one query and the time is
the processor's: on a busy machine a wall clock would count the work of others, and more of it for
long calls than for short ones. On more threads a call holds all queries, and the time is the wall
clock's, divided by their number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import faiss
import numpy as np
from additive_codes import Asked, Kind, Within, load_additive_codes
from learned_codes import CROPS, TABLE, WORDS, load_learned_codes
from provenance import provenance
from rich.console import Console
from rich.table import Table
from search_rivals import (
    FLAT_ROWS,
    RABITQ_ROWS,
    DistinctCodes,
    fast_scan,
    flat_floats,
    inverted_lists,
    numpy_scan,
    rabitq,
)

from phpq.codes import CodeArray, Codebooks, FloatArray
from phpq.index import CodeIndex, SearchResult, to_faiss

TOP_K = 100
SEED = 0
REAL_BYTES = 8  # of the codes of crops
LEARNED = {"learned": TABLE, "learned crops": CROPS}
_ROUNDING = 1e-5  # faiss may add in another order
_LIST_GROUPS = 1_000_000  # distinct codes above which assigning them to lists takes too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; ms are for one query, None where it was not measured."""

    codes: str
    classes: int | None
    asked: str | None = None  # sort of queries, of a gallery's own codebooks
    within: str | None = None  # what their new codes are put together from
    rows: int
    m: int
    threads: int
    queries: int
    ours_ms: float
    ours_mean_ms: float
    faiss_pq_ms: float
    ratio: float  # faiss_pq_ms / ours_ms
    faiss_distinct_ms: float  # IndexPQ over each code once, then their rows: exact
    distinct_ratio: float
    faiss_rabitq_ms: float | None = None  # of floats: 100,000 rows of 200 bytes, multiplied
    faiss_ivfpq_ms: float | None = None
    faiss_ivfpq_recall: float | None = None
    faiss_ivfpq_probes: int | None = None
    faiss_fastscan_ms: float | None = None  # 4-bit codes: other codes of as many bytes
    faiss_flat_ms: float | None = None  # measured on 20,000 rows, multiplied
    numpy_ms: float | None = None
    build_s: float
    bytes_per_row: float
    distinct_codes: int
    in_reach: tuple[float, ...] = ()  # see `rows_in_reach`
    identical: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """Codes and queries, our index of them, and what was found out while making it."""

    kind: str
    classes: int | None
    asked: Asked | None = None
    within: Within | None = None
    codes: CodeArray
    tables: FloatArray
    index: CodeIndex
    build_s: float

    @property
    def queries(self) -> FloatArray:
        """The tables as vectors, (Q, M * 256) float32."""
        return self.tables.reshape(len(self.tables), -1)

    @property
    def distinct_codes(self) -> int:
        """Different codes among the rows."""
        width = 8 * ((self.codes.shape[1] + 7) // 8)
        padded = np.zeros((len(self.codes), width), dtype=np.uint8)
        padded[:, : self.codes.shape[1]] = self.codes
        keys = padded.view(np.uint64).ravel()
        keys.sort()
        return int(np.count_nonzero(np.diff(keys))) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """Something else to search with; its times are multiplied where it holds fewer rows."""

    search: Callable[[FloatArray], Any]
    queries: FloatArray
    factor: float = 1.0


def make_cases(
    rows: int, kind: str, spread: int | Within | None, num_codebooks: int, *, queries: int
) -> list[Case]:
    """Draw codes and queries and build our index; a case for each sort of queries.

    Learned codes are spread over so many classes; new codes of own codebooks over photo or class.
    """
    classes = spread if isinstance(spread, int) else None
    within: Within | None = None if spread is None or isinstance(spread, int) else spread
    sorts: tuple[Asked | None, ...] = (None,)
    if kind == "random":
        rng = np.random.default_rng(SEED)
        codes = rng.integers(0, WORDS, (rows, num_codebooks), dtype=np.uint8)
        shape = (queries, num_codebooks, WORDS)
        tables = [(rng.standard_normal(shape) / 10).astype(np.float32)]
    elif kind in LEARNED:
        learned = load_learned_codes(num_codebooks, path=LEARNED[kind])
        codes = learned.gallery(rows, classes or 0, seed=SEED)
        tables = [learned.queries(queries, classes or 0, seed=SEED)]
    else:
        additive = load_additive_codes("labelled" if kind == "labelled" else "new kinds")
        codes, sorts = additive.gallery(rows, within or "class", seed=SEED), get_args(Asked)
        tables = [additive.queries(each, seed=SEED)[:queries] for each in get_args(Asked)]
    books = Codebooks(np.tile(np.eye(WORDS, dtype=np.float32), (num_codebooks, 1, 1)))
    start = time.perf_counter()
    index = CodeIndex(books, codes).build()
    case = Case(
        kind=kind,
        classes=classes,
        within=within,
        codes=codes,
        tables=tables[0],
        index=index,
        build_s=time.perf_counter() - start,
    )
    return [
        replace(case, asked=asked, tables=mine) for asked, mine in zip(sorts, tables, strict=True)
    ]


def rows_in_reach(case: Case, queries: int) -> tuple[float, ...]:
    """Return the mean share of rows that a bound by the first 1, 2, ... M bytes leaves.

    Were the last score of the answer known from the start, a search that sees so many bytes of each
    row, and takes the best entry for the others, would still have to look at these rows.
    """
    worst = case.index.search_tables(case.tables[:queries], TOP_K, threads=1).scores[:, -1]
    shares = np.zeros((queries, case.codes.shape[1]))
    for query, table in enumerate(case.tables[:queries]):
        most = np.full(len(case.codes), table.max(axis=1).sum())
        for book, words in enumerate(table):
            most += (words - words.max())[case.codes[:, book]]
            shares[query, book] = (most >= worst[query] - _ROUNDING).mean()
    return tuple(shares.mean(axis=0).tolist())


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Time one call: the processor's time, or that of a wall clock."""
    start = clock()
    call()
    return clock() - start


def median_ms(search: Callable[[FloatArray], Any], queries: FloatArray) -> float:
    """Return the median time of one query per call; the first call is not counted."""
    search(queries[:1])
    times = [seconds(lambda i=i: search(queries[i : i + 1])) for i in range(len(queries))]  # type: ignore[misc]
    return statistics.median(times) * 1e3


def take_turns(case: Case, rivals: dict[str, Rival], *, threads: int, turns: int) -> dict[str, Any]:
    """Time ours and the rivals in turns: ours some queries, each of them one, and again."""
    queries = case.queries

    def ours(part: FloatArray) -> SearchResult:
        return case.index.search(part, TOP_K, query_norm="raw", threads=threads)

    ours(queries[:2])  # compiled code is loaded
    for rival in rivals.values():
        rival.search(rival.queries[:1])
    mine: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in rivals}
    if threads == 1:
        for turn, block in enumerate(np.array_split(np.arange(len(queries)), turns)):
            mine += [seconds(lambda i=i: ours(queries[i : i + 1])) for i in block]  # type: ignore[misc]
            for name, rival in rivals.items():
                query = rival.queries[turn : turn + 1]
                theirs[name].append(seconds(lambda r=rival, q=query: r.search(q)))  # type: ignore[misc]
    else:
        for _ in range(3):
            mine.append(seconds(lambda: ours(queries), time.perf_counter) / len(queries))
            for name, rival in rivals.items():
                few = rival.queries[:turns]
                answer = seconds(lambda r=rival, q=few: r.search(q), time.perf_counter)  # type: ignore[misc]
                theirs[name].append(answer / len(few))
    median = statistics.median(mine)
    return {
        "ours_ms": median * 1e3,
        "ours_mean_ms": statistics.fmean(mine) * 1e3,
        "ratio": statistics.median(theirs["pq"]) / median,
        "distinct_ratio": statistics.median(theirs["distinct"]) / median,
    } | {
        f"faiss_{name}_ms": statistics.median(times) * 1e3 * rivals[name].factor
        for name, times in theirs.items()
    }


def agrees(case: Case, rival: Any, *, threads: int, rival_queries: int, scans: int) -> bool:
    """Compare with the full scan in numpy, to the last bit and row, and with faiss.

    faiss breaks ties its own way: its scores must be ours within rounding, and each row that is
    clearly better than the last one must be in both answers.
    """
    count = max(rival_queries, scans)
    found = case.index.search(case.queries[:count], TOP_K, query_norm="raw", threads=threads)
    for q in range(scans):
        scores, rows = numpy_scan(case.tables[q : q + 1], case.codes, TOP_K)
        if not (np.array_equal(found.ids[q], rows) and np.array_equal(found.scores[q], scores)):
            return False
    scores, rows = rival.search(case.queries[:rival_queries], TOP_K)
    for q in range(rival_queries):
        if np.abs(found.scores[q] - scores[q]).max() > _ROUNDING:
            return False
        clear = found.scores[q, -1] + 2 * _ROUNDING
        ours = set(found.ids[q][found.scores[q] > clear].tolist())
        theirs = set(rows[q][scores[q] > clear].tolist())
        if not (ours <= set(rows[q].tolist()) and theirs <= set(found.ids[q].tolist())):
            return False
    return True


def others(case: Case, *, distinct: int, rival_queries: int) -> dict[str, Any]:
    """Time everything else on one thread."""
    rows, books = case.codes.shape
    queries = case.queries[:rival_queries]
    scan, scan_queries = fast_scan(rows, books, seed=SEED)
    flat, flat_queries = flat_floats(seed=SEED)
    result: dict[str, Any] = {
        "faiss_fastscan_ms": median_ms(lambda q: scan.search(q, TOP_K), scan_queries),
        "faiss_flat_ms": median_ms(lambda q: flat.search(q, TOP_K), flat_queries)
        * (rows / FLAT_ROWS),
        "numpy_ms": 1e3 * seconds(lambda: numpy_scan(case.tables[:1], case.codes, TOP_K)),
    }
    if distinct <= _LIST_GROUPS:
        exact = case.index.search(queries, TOP_K, query_norm="raw", threads=1)
        lists = inverted_lists(
            case.index.codebooks,
            case.codes,
            queries=queries,
            worst=exact.scores[:, -1],
            top_k=TOP_K,
        )
        result["faiss_ivfpq_ms"] = median_ms(lambda q: lists.index.search(q, TOP_K), queries)
        result["faiss_ivfpq_recall"] = lists.recall
        result["faiss_ivfpq_probes"] = lists.probes
    return result


def measure(cases: list[Case], options: argparse.Namespace) -> Iterator[Row]:
    """Time cases of the same codes on each number of threads."""
    books, codes = cases[0].index.codebooks, cases[0].codes
    plain, by_code = to_faiss(books, codes), DistinctCodes(books, codes)
    distinct = cases[0].distinct_codes
    for case, threads in itertools.product(cases, options.threads):
        yield measure_case(case, (plain, by_code), distinct, threads, options)


def measure_case(
    case: Case, exact: tuple[Any, Any], distinct: int, threads: int, options: argparse.Namespace
) -> Row:
    """Time a case; `exact` are faiss over all rows and over distinct codes."""
    plain, by_code = exact
    faiss.omp_set_num_threads(threads)
    few = min(len(case.tables), options.rival_queries)
    rivals = {
        "pq": Rival(lambda q: plain.search(q, TOP_K), case.queries),
        "distinct": Rival(lambda q: by_code.search(q, TOP_K), case.queries),
    }
    extra: dict[str, Any] = {}
    if threads == 1:
        floats, asked = rabitq(seed=SEED)
        factor = len(case.codes) / RABITQ_ROWS
        rivals["rabitq"] = Rival(lambda q: floats.search(q, TOP_K), asked, factor)
        extra = {} if options.only_pq else others(case, distinct=distinct, rival_queries=few)
    same = (
        agrees(case, each, threads=threads, rival_queries=few, scans=scans)
        for each, scans in ((plain, 3), (by_code, 0))
    )
    return Row(
        codes=case.kind,
        classes=case.classes,
        asked=case.asked,
        within=case.within,
        rows=len(case.codes),
        m=case.codes.shape[1],
        threads=threads,
        queries=len(case.tables),
        build_s=case.build_s,
        bytes_per_row=case.index.memory_bytes() / len(case.codes),
        distinct_codes=distinct,
        in_reach=() if case.asked is None else rows_in_reach(case, few),
        identical=all(same),
        **take_turns(case, rivals, threads=threads, turns=few),
        **extra,
    )


def print_table(rows: list[Row], console: Console) -> None:
    """Show the rows; FastScan searches other codes, flat floats are scaled from fewer rows."""
    table = Table(title=f"ms per query, top-{TOP_K}")
    heads = ["codes", "classes", "rows", "M", "threads", "distinct", "build s", "B/row", "ours"]
    heads += ["(mean)", "IndexPQ", "ratio", "distinct", "ratio", "RaBitQ*", "IVFPQ", "FastScan*"]
    heads += ["flat float*", "numpy", "same"]
    for head in heads:
        table.add_column(head, justify="left" if head == "codes" else "right")
    for row in rows:
        lists = "-"
        if row.faiss_ivfpq_ms is not None:
            lists = f"{row.faiss_ivfpq_ms:.2f} ({row.faiss_ivfpq_recall:.3f})"
        table.add_row(
            f"{row.codes} {row.within or ''}", f"{row.classes or row.asked or '-'}", f"{row.rows}",
            f"{row.m}",
            f"{row.threads}", f"{row.distinct_codes}", f"{row.build_s:.1f}",
            f"{row.bytes_per_row:.1f}", f"{row.ours_ms:.3f}", f"{row.ours_mean_ms:.3f}",
            f"{row.faiss_pq_ms:.2f}", f"{row.ratio:.1f}", f"{row.faiss_distinct_ms:.2f}",
            f"{row.distinct_ratio:.1f}", _short(row.faiss_rabitq_ms), lists,
            _short(row.faiss_fastscan_ms), _short(row.faiss_flat_ms), _short(row.numpy_ms),
            "yes" if row.identical else "NO",
        )  # fmt: skip
    console.print(table)
    console.print("IVFPQ: fewest probes of recall >= 0.99 (recall reached). FastScan: 4-bit codes.")
    console.print("distinct: IndexPQ over each code once, then the rows of the best codes; exact.")
    console.print(
        f"RaBitQ and flat floats search floats: measured on {RABITQ_ROWS} and {FLAT_ROWS} rows of "
        "1,536, and multiplied."
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def one_blas_thread() -> None:
    """Start again with one thread for matrix products, which is read when numpy is loaded.

    faiss gets its threads by a call; ours are an argument.
    """
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    if any(os.environ.get(name) != "1" for name in names):
        os.environ.update(dict.fromkeys(names, "1"))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def parse() -> argparse.Namespace:
    """Read the command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--classes", type=int, nargs="+", default=[200, 10_000, 1_000_000])
    every = [*LEARNED, "random", *get_args(Kind)]
    parser.add_argument("--codes", nargs="+", default=every, choices=every)
    parser.add_argument("--m", type=int, nargs="+", default=[2, 4, 6, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores}))
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--rival-queries", type=int, default=8, help="of these, for faiss")
    parser.add_argument(
        "--only-pq", action="store_true", help="of the rivals, IndexPQ and RaBitQ only"
    )
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 200 classes, M = 2, 8")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.classes, options.m = [200_000], [200], [2, 8]
    return options


def main() -> None:
    """Run every case and print."""
    options = parse()
    one_blas_thread()
    progress = Console(stderr=True)
    kinds: list[tuple[str, int | Within | None]] = []
    for kind in options.codes:
        spread = options.classes if kind in LEARNED else [None]
        kinds += [(kind, each) for each in (get_args(Within) if kind in get_args(Kind) else spread)]
    make_cases(20_000, "random", None, 4, queries=1)[0].index.search_tables(
        np.zeros((1, 4, WORDS), dtype=np.float32)
    )  # compiles, so that build times do not
    result: list[Row] = []
    for rows, (kind, spread), books in itertools.product(options.rows, kinds, options.m):
        if kind not in ("learned", "random") and books != REAL_BYTES:
            continue
        cases = make_cases(rows, kind, spread, books, queries=options.queries)
        for row in measure(cases, options):
            result.append(row)
            progress.print(
                f"{row.codes} {row.within or ''} {row.classes or row.asked or ''} "
                f"rows={row.rows} M={row.m} threads={row.threads}: {row.ours_ms:.3f} ms, "
                f"{row.ratio:.0f} x, of distinct codes {row.distinct_ratio:.0f} x"
            )
    if options.json:
        rows = [asdict(row) for row in result]
        about = {"made": provenance(options), "faiss": faiss.__version__}
        print(json.dumps(about | {"results": rows}, indent=1))
    else:
        print_table(result, Console(width=200))


if __name__ == "__main__":
    main()
