"""What a laptop waits for, and what it holds: sections `first`, `start` and `serve` of `laptop.py`.

first: what README tells a newcomer who has a folder of photos, from an empty environment to the
first search, each command in a process of its own and nothing cached but packages.
start: `phpq search GALLERY photo.jpg` in a process of its own, from the start of Python to its end.
"First" is the first on a machine: no file of Python is compiled, and nothing is cached but the copy
that `phpq index` leaves. serve: seconds until it is ready, searches by upload a second, and the
memory of all its processes together (PSS: what they share counts once) after 100 uploads. Codes are
made up and the network is not trained: neither changes the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phpq.data import open_dataset
from phpq.gallery import GalleryStore
from phpq.model import load
from phpq.model.checkpoint import WEIGHTS
from phpq.model.export import export_onnx
from phpq.model.int8 import export_int8
from phpq.model.interface import ENCODER, INT8
from serve import by_upload, draw_uploads, drive, make_gallery, server

Row = dict[str, Any]
IMAGES = 2640
UPLOADS = 100
CLIENTS = 8
RUNS, TURNS = 5, 5
AGAIN_S, FIRST_S, READY_S, PSS_MB = 2, 4, 3, 350
ROOT = Path(__file__).resolve().parent.parent
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


def measure_search(gallery: Path, photo: Path, runtime: str) -> SearchCost:
    """Search for the first time, and then again."""
    with tempfile.TemporaryDirectory() as fresh:
        places = {"PYTHONPYCACHEPREFIX": f"{fresh}/pyc", "XDG_CACHE_HOME": f"{fresh}/cache"}
        first = time_search(gallery, photo, runtime, **places)
    times, cpu = zip(*(time_search(gallery, photo, runtime) for _ in range(RUNS)), strict=True)
    return SearchCost(runtime, *first, statistics.median(times), min(times), min(cpu))


def measure_serve(gallery: Path, uploads: list[bytes], runtime: str) -> ServeCost:
    """Start a server, send it uploads, and look at its memory."""
    start = time.perf_counter()
    with server(gallery, "--runtime", runtime, "--rate", "0") as (address, pid):
        ready = time.perf_counter() - start
        upload(address, uploads, UPLOADS)
        pids = family(pid)
        return ServeCost(runtime, ready, sum(map(pss_mb, pids)), len(pids))


def race(gallery: Path, uploads: list[bytes], costs: list[ServeCost]) -> list[ServeCost]:
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
                took = upload(address, uploads, UPLOADS // TURNS)
                if turn:  # the first starts decoders
                    seconds[place] += took
                    cpu[place] += cpu_seconds(family(pid)) - before
    return [
        replace(cost, uploads_per_s=UPLOADS / took, cpu_ms=1000 * used / UPLOADS)
        for cost, took, used in zip(costs, seconds, cpu, strict=True)
    ]


def upload(address: str, uploads: list[bytes], count: int) -> float:
    """Search for `count` uploads, all of which must be answered; returns the seconds."""
    _, statuses, took = drive(
        address, by_upload(uploads), clients=CLIENTS, seconds=600, most=count - CLIENTS
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


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[tuple[Path, Path, list[str]]]:
    """Yield a gallery, a folder to write to, and the runtimes that the gallery has files for."""
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        gallery = options.gallery
        if gallery is None:
            gallery = make_gallery(room, IMAGES, backbone="resnet18")
            model = load(gallery / "model", device="cpu", runtime="torch")
            export_onnx(model, gallery / "model" / ENCODER)
            export_int8(model, open_dataset("plumage").train, gallery / "model" / INT8)
        GalleryStore.open(gallery).copy()  # as `phpq index` does
        files = {"torch": WEIGHTS, "onnx": ENCODER, "int8": INT8}
        yield (
            gallery,
            room,
            [r for r, file in files.items() if (gallery / "model" / file).is_file()],
        )


def measure_first(options: argparse.Namespace) -> list[Row]:
    """Install, train, index and search, as a newcomer does."""
    if options.source is None or options.weights is None:
        raise SystemExit("first: say whose photos with --source FOLDER --weights FILE")
    photo = next(path for path in sorted(Path(options.source).rglob("*")) if path.is_file())
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        subprocess.run(["uv", "venv", "-q", "-p", sys.executable, room / "venv"], check=True)
        phpq, run, gallery = room / "venv/bin/phpq", room / "runs/birds", room / "birds.gallery"
        commands: dict[str, list[str | Path]] = {
            "pip install 'phpq[train]'": ["uv", "pip", "install", "-q", f"{ROOT}[train]"],
            "phpq train": [phpq, "train", options.source, "--out", run],
            "phpq index": [phpq, "index", gallery, options.source, "--model", run],
            "phpq search": [phpq, "search", gallery, photo],
        }
        commands["pip install 'phpq[train]'"] += ["--python", room / "venv"]
        commands["phpq train"] += ["--weights", Path(options.weights).resolve()]
        places = {"PHPQ_HOME": f"{room}/home", "XDG_CACHE_HOME": f"{room}/cache"}
        rows: list[Row] = []
        for title, command in commands.items():
            # The cache of packages is the installer's own; what phpq keeps is not there yet.
            environment = os.environ | (places if title.startswith("phpq") else {})
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            rows.append({"command": title, "seconds": round(time.perf_counter() - start, 1)})
    return [*rows, {"command": "all", "seconds": round(sum(row["seconds"] for row in rows), 1)}]


def measure_start(options: argparse.Namespace) -> list[Row]:
    """Search from nothing, with each runtime."""
    with prepared(options) as (gallery, room, runtimes):
        photo = room / "photo.jpg"
        photo.write_bytes(draw_uploads(1)[0])
        costs = [measure_search(gallery, photo, runtime) for runtime in runtimes]
    return [_rounded(asdict(cost), f"{FIRST_S} s, then {AGAIN_S}") for cost in costs]


def measure_served(options: argparse.Namespace) -> list[Row]:
    """Serve with each runtime."""
    uploads = draw_uploads(UPLOADS)
    with prepared(options) as (gallery, _, runtimes):
        costs = [measure_serve(gallery, uploads, runtime) for runtime in runtimes]
        costs = race(gallery, uploads, costs)
    return [_rounded(asdict(cost), f"{READY_S} s, {PSS_MB} MB") for cost in costs]


def _rounded(row: Row, must: str) -> Row:
    row = {name: round(v, 2) if isinstance(v, float) else v for name, v in row.items()}
    return row | {"must": must if row["runtime"] != "torch" else ""}
