"""What a laptop waits for, and what it holds: a search from nothing, and a server with uploads.

    python benchmarks/laptop_start.py                     # 2,640 images, torch beside onnxruntime
    python benchmarks/laptop_start.py --part search --runs 5 --json

Search: `phpq search GALLERY photo.jpg` in a process of its own, from the start of Python to its
end. "First" is the first on a machine: no file of Python is compiled, and nothing is cached but the
copy that `phpq index` leaves. Serve: seconds until it is ready, searches by upload a second, and
the memory of all its processes together (PSS: what they share counts once) after 100 uploads. Codes
are made up and the network is not trained: neither changes the time. `--gallery` takes one with a
file for int8 (`phpq export GALLERY --int8 --images SOURCE`), and measures that too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from phpq.gallery import GalleryStore
from serve import by_upload, draw_uploads, drive, make_gallery, server

RUNTIMES = ("torch", "onnx", "int8")
UPLOADS = 100
TURNS = 5
PHPQ = (sys.executable, "-c", "from phpq.cli import main; main()")


@dataclass(frozen=True)
class SearchCost:
    """Seconds of a whole command."""

    runtime: str
    first_s: float
    first_cpu_s: float
    again_s: float  # the median
    best_s: float
    cpu_s: float  # of the processor, the least


@dataclass(frozen=True)
class ServeCost:
    """What a server takes."""

    runtime: str
    ready_s: float
    pss_mb: float  # after the uploads
    processes: int
    uploads_per_s: float = 0.0  # of all runtimes in turns
    cpu_ms: float = 0.0  # of the processor per upload, of all processes


def time_search(
    gallery: Path, photo: Path, runtime: str, **environment: str
) -> tuple[float, float]:
    """Run one search; returns its seconds, and those of the processor."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(
        [*PHPQ, "search", str(gallery), str(photo), "--runtime", runtime],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    took, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return took, cpu - before.children_user - before.children_system


def measure_search(gallery: Path, photo: Path, runtime: str, *, runs: int) -> SearchCost:
    """Search for the first time, and then again."""
    with tempfile.TemporaryDirectory() as fresh:
        places = {"PYTHONPYCACHEPREFIX": f"{fresh}/pyc", "XDG_CACHE_HOME": f"{fresh}/cache"}
        first = time_search(gallery, photo, runtime, **places)
    times, cpu = zip(*(time_search(gallery, photo, runtime) for _ in range(runs)), strict=True)
    return SearchCost(runtime, *first, statistics.median(times), min(times), min(cpu))


def measure_serve(gallery: Path, uploads: list[bytes], runtime: str, *, clients: int) -> ServeCost:
    """Start a server, send it uploads, and look at its memory."""
    start = time.perf_counter()
    with server(gallery, "--runtime", runtime, "--rate", "0") as (address, pid):
        ready = time.perf_counter() - start
        upload(address, uploads, UPLOADS, clients=clients)
        pids = family(pid)
        return ServeCost(runtime, ready, sum(map(pss_mb, pids)), len(pids))


def race(
    gallery: Path, uploads: list[bytes], costs: list[ServeCost], *, clients: int
) -> list[ServeCost]:
    """Let servers of all runtimes answer in turns, so that a busy machine disturbs all alike."""
    seconds, cpu = [0.0] * len(costs), [0.0] * len(costs)
    with ExitStack() as running:
        servers = [
            running.enter_context(server(gallery, "--runtime", cost.runtime, "--rate", "0"))
            for cost in costs
        ]
        for turn in range(1 + TURNS):
            for place, (address, pid) in enumerate(servers):
                before = cpu_seconds(family(pid))
                took = upload(address, uploads, UPLOADS // TURNS, clients=clients)
                if turn:  # the first starts decoders
                    seconds[place] += took
                    cpu[place] += cpu_seconds(family(pid)) - before
    return [
        replace(cost, uploads_per_s=UPLOADS / took, cpu_ms=1000 * used / UPLOADS)
        for cost, took, used in zip(costs, seconds, cpu, strict=True)
    ]


def upload(address: str, uploads: list[bytes], count: int, *, clients: int) -> float:
    """Search for `count` uploads, all of which must be answered; returns the seconds."""
    _, statuses, took = drive(
        address, by_upload(uploads), clients=clients, seconds=600, most=count - clients
    )
    if set(statuses) != {200}:
        sys.exit(f"Not all uploads were answered: {dict(statuses)}")
    return took * count / statuses[200]


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the time of the processor that processes took so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    """Return the memory of a process in MB, its share of what it shares with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def runtimes_of(gallery: Path, asked: list[str]) -> list[str]:
    """Return the runtimes that can be measured: int8 needs its file."""
    return [
        name for name in asked if name != "int8" or (gallery / "model/encoder.int8.onnx").is_file()
    ]


def table(rows: list[SearchCost] | list[ServeCost]) -> str:
    """Lay out figures as a Markdown table."""
    names = list(asdict(rows[0]))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for row in rows:
        cells = (f"{v:.2f}" if isinstance(v, float) else str(v) for v in asdict(row).values())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2640)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--gallery", type=Path, help="an existing one, with its ONNX files")
    parser.add_argument("--part", choices=("search", "serve", "both"), default="both")
    parser.add_argument("--runtime", action="append", choices=RUNTIMES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    uploads = draw_uploads(UPLOADS)
    with tempfile.TemporaryDirectory() as folder:
        gallery = options.gallery
        if gallery is None:
            gallery = make_gallery(Path(folder), options.rows, backbone=options.backbone)
            subprocess.run([*PHPQ, "export", str(gallery)], check=True, stdout=subprocess.DEVNULL)
        GalleryStore.open(gallery).copy()  # as `phpq index` does
        photo = Path(folder) / "photo.jpg"
        photo.write_bytes(uploads[0])
        asked = runtimes_of(gallery, options.runtime or list(RUNTIMES))
        searches = [
            measure_search(gallery, photo, runtime, runs=options.runs)
            for runtime in (asked if options.part != "serve" else ())
        ]
        serves = [
            measure_serve(gallery, uploads, runtime, clients=options.clients)
            for runtime in (asked if options.part != "search" else ())
        ]
        serves = race(gallery, uploads, serves, clients=options.clients)
    if options.json:
        parts: dict[str, list[SearchCost] | list[ServeCost]] = {"search": searches, "serve": serves}
        print(json.dumps({name: [asdict(row) for row in rows] for name, rows in parts.items()}))
        return
    for rows in (searches, serves):
        if rows:
            print(table(rows), end="\n\n")


if __name__ == "__main__":
    main()
