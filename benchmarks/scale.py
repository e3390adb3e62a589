"""What a gallery costs as it grows: measured at 1M, 10M and 100M codes, beside what a model says.

    python benchmarks/scale.py                # about 20 minutes, 4 GB; prints the tables
    python benchmarks/scale.py --quick        # 200,000 and 400,000 rows: a minute, for a look
    python benchmarks/scale.py --write        # and writes docs/results/scale.* and the guide
    python benchmarks/scale.py --guide        # only renews their tables from scale.json

Codes are learned-like with 10, 100 and 1,000 rows per class (see `learned_codes.py`), or uniform at
random, which never repeat. Each case runs in a process of its own, so that its peak of memory is
its own. Search: top-100, one query per call, one thread, the processor's time. What the model (see
`scale_model.py`) says of 100M rows is predicted from 1M and 10M alone. Galleries on disk hold an
id, a path, a label, a hash and a code per image.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import render
from learned_codes import WORDS, load_learned_codes
from provenance import provenance
from scale_guide import DATA, TABLES
from scale_model import RANDOM, CostModel

from phpq.codes import CodeArray, Codebooks, FloatArray
from phpq.index import CodeIndex

TOP_K = 100
SEED = 0
ROOT = Path(__file__).parents[1]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Numbers that other pages measured, and prices and machines that are only examples.
CITED = {
    "decode_per_core": {"value": 345.0, "unit": "images/s", "source": "gallery.md"},
    "index_per_core": {"value": 9.5, "unit": "images/s", "source": "gallery.md"},
    "train_per_gpu": {"value": 10095.0, "unit": "images/s", "source": "cub200.md"},
    "train_epochs": {"value": 70.0, "unit": "epochs", "source": "cub200.md"},
    "serve_by_id_ms": {"value": 5.2, "unit": "ms", "source": "serve.md"},
    "serve_by_upload_ms": {"value": 57.9, "unit": "ms", "source": "serve.md"},
}
ASSUMED = {
    "cpu_machine_cores": 16,
    "cpu_machine_gb": 64,
    "cpu_machine_hour": 0.80,
    "gpu_machine_cores": 16,
    "gpu_machine_hour": 4.00,
    "storage_gb_month": 0.023,
    "memory_share": 0.8,
    "training_images": 1_000_000,
}


def draw(rows: int, classes: int, books: int, queries: int) -> tuple[CodeArray, FloatArray]:
    """Return codes (N, M) and lookup tables (Q, M, 256); no classes means uniform codes."""
    if classes:
        learned = load_learned_codes(books)
        return (
            learned.gallery(rows, classes, seed=SEED),
            learned.queries(queries, classes, seed=SEED),
        )
    rng = np.random.default_rng(SEED)
    codes = rng.integers(0, WORDS, (rows, books), dtype=np.uint8)
    shape = (queries, books, WORDS)
    return codes, (rng.standard_normal(shape) / 10).astype(np.float32)


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * _PAGE_BYTES


def peak() -> int:
    """Return the most that it ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(rows: int, rows_per_class: int, books: int, queries: int) -> dict[str, Any]:
    """Build an index and search it; in a process of its own."""
    codebooks = Codebooks(np.tile(np.eye(WORDS, dtype=np.float32), (books, 1, 1)))
    small, tables = draw(20_000, 20, books, 2)
    CodeIndex(codebooks, small).build().search_tables(tables, TOP_K, threads=1)  # compiles
    classes = rows // rows_per_class if rows_per_class else 0
    codes, tables = draw(rows, classes, books, queries)
    vectors = tables.reshape(queries, -1)
    before = resident() - codes.nbytes
    start = time.process_time()
    index = CodeIndex(codebooks, codes).build()
    build = time.process_time() - start
    highest = peak() - before
    index.search(vectors[:2], TOP_K, query_norm="raw", threads=1)
    times = []
    for number in range(queries):
        start = time.process_time()
        index.search(vectors[number : number + 1], TOP_K, query_norm="raw", threads=1)
        times.append(1e3 * (time.process_time() - start))
    start = time.perf_counter()
    index.search(vectors, TOP_K, query_norm="raw", threads=0)
    together = 1e3 * (time.perf_counter() - start) / queries
    del codes  # counting makes them again
    return {
        "m": books,
        "rows": rows,
        "rows_per_class": rows_per_class,
        "classes": classes,
        "queries": queries,
        "distinct": count_distinct(index),
        "build_s": round(build, 3),
        "build_peak_bytes_per_row": round(highest / rows, 2),
        "memory_bytes": index.memory_bytes(),
        "median_ms": round(statistics.median(times), 4),
        "mean_ms": round(statistics.fmean(times), 4),
        "p95_ms": round(float(np.quantile(times, 0.95)), 4),
        "all_threads_ms": round(together, 4),
    }


def count_distinct(index: CodeIndex) -> int:
    """Count different codes."""
    codes = index.codes()
    keys = np.zeros((len(codes), 8), dtype=np.uint8)
    keys[:, : codes.shape[1]] = codes
    del codes
    flat = keys.view(np.uint64).ravel()
    flat.sort()
    return int(np.count_nonzero(flat[1:] != flat[:-1])) + 1


def measure_gallery(rows: int, books: int) -> dict[str, Any]:
    """Write a gallery of made-up records, and open it as a search does."""
    from phpq.gallery.export import folder_bytes
    from phpq.gallery.folder import new_manifest
    from phpq.gallery.records import Record
    from phpq.gallery.store import GalleryStore

    codebooks = Codebooks(np.tile(np.eye(WORDS, dtype=np.float32), (books, 1, 1)))
    codes, _ = draw(rows, max(1, rows // 1000), books, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made-up.gallery"
        store = GalleryStore.create(path, new_manifest(codebooks, "made up"))
        start = time.perf_counter()
        for first in range(0, rows, 50_000):
            numbers = range(first, min(first + 50_000, rows))
            names = [f"{n % 1000:03}/{n:010}.jpg" for n in numbers]
            store.put(
                [
                    Record(
                        name,
                        f"/data/photographs/{name}",
                        f"species {n % 1000:03}",
                        hashlib.sha256(name.encode()).digest(),
                        codes[n],
                    )
                    for n, name in zip(numbers, names, strict=True)
                ]
            )
        written = time.perf_counter() - start
        store.compact()
        disk = folder_bytes(path / "images.lance")
        opened = apart("--open-case", path)
    return {
        "rows": rows,
        "m": books,
        "disk_bytes_per_row": round(disk / rows, 2),
        "write_s": round(written, 2),
        **opened,
    }


def measure_open(path: Path) -> dict[str, Any]:
    """Open a gallery as a search does: read and check all codes, and build the index."""
    from phpq.gallery._part import find_part
    from phpq.gallery.store import GalleryStore

    store = GalleryStore.open(path)
    books = store.manifest.num_codebooks
    codebooks = Codebooks(np.tile(np.eye(WORDS, dtype=np.float32), (books, 1, 1)))
    CodeIndex(codebooks, draw(20_000, 20, books, 1)[0]).build()  # compiles
    before = resident()
    start = time.perf_counter()
    CodeIndex(codebooks, find_part(GalleryStore.open(path)).codes()).build()
    return {
        "open_s": round(time.perf_counter() - start, 3),
        "open_peak_bytes": peak() - before,
    }


def apart(*arguments: object) -> dict[str, Any]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    # One thread for matrix products: it is read when numpy is loaded.
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, "1")
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    print(" ".join(f"{name}={value}" for name, value in result.items()), file=sys.stderr)
    return result


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7, 10**8])
    parser.add_argument("--rows-per-class", type=int, nargs="+", default=[RANDOM, 10, 100, 1000])
    parser.add_argument("--m", type=int, default=8, help="bytes per code")
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--gallery-rows", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument("--write", action="store_true", help="docs/results/scale.* and the guide")
    parser.add_argument("--guide", action="store_true", help="only rewrite them from scale.json")
    parser.add_argument("--note", default="", help="a sentence about this run, for the page")
    for name, value in ASSUMED.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=float, help=f"an assumption (default {value:g})")
    parser.add_argument("--case", type=int, nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--open-case", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gallery-case", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.gallery_rows = [200_000, 400_000], [20_000, 40_000]
        options.rows_per_class, options.queries = [RANDOM, 100], 32
    return options


def queries_of(options: argparse.Namespace, rows: int, rows_per_class: int) -> int:
    """Return fewer queries where each is a scan of many rows."""
    scans = rows_per_class in (RANDOM, 10) and rows > 10**7
    return min(options.queries, 32) if scans else int(options.queries)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases."""
    cases = [
        apart("--case", rows, path, options.m, queries_of(options, rows, path))
        for rows in options.rows
        for path in options.rows_per_class
    ]
    galleries = [apart("--gallery-case", rows, options.m) for rows in options.gallery_rows]
    return {
        "made": provenance(options),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "note": options.note,
        "top_k": TOP_K,
        "m": options.m,
        "cases": cases,
        "galleries": galleries,
        "cited": CITED,
        "assumed": ASSUMED,
    }


def main() -> None:
    """Measure, print, and write if asked to."""
    options = parse()
    if options.case:
        print(json.dumps(measure(*options.case)))
        return
    if options.open_case:
        print(json.dumps(measure_open(options.open_case)))
        return
    if options.gallery_case:
        print(json.dumps(measure_gallery(*options.gallery_case)))
        return
    data = json.loads(DATA.read_text("utf-8")) if options.guide else run(options)
    given = {name: getattr(options, name) for name in ASSUMED}
    data["assumed"] |= {name: value for name, value in given.items() if value is not None}
    model = CostModel.fit(data["cases"], data["m"])
    print("\n\n".join(f"{name}\n{table(data, model)}" for name, table in TABLES.items()))
    if options.write or options.guide:
        DATA.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        render.write()


if __name__ == "__main__":
    main()
