"""Sharded search beside one process: the same answers, throughput, and a shard killed under load.

    python benchmarks/sharded_search.py                       # 10,000,000 rows, 1, 2 and 4 shards
    python benchmarks/sharded_search.py --rows 100000 --seconds 3 --shards 1 2 --codes random --json

A gallery of drawn codes is served by `phpq serve`, then by `phpq serve --ray` with shards on a Ray
cluster of this machine. Every sharded server must give the answers of the single one: ids, scores
and totals, with filters, offsets and ties. Throughput is measured through HTTP, where an answer is
also read from disk and put into words, and directly through the handles of the shards, where it
is not. Then the process of a shard is killed while clients compare every answer with the right one.
Exit code 1 if an answer differs, or an error falls outside the window that follows the kill.

Codes are learned-like (see `learned_codes.py`; hardly any work), or uniform at random (every row is
looked at; the work of a search is largest). All processes share the cores of one machine: what is
seen is mostly what shards cost, not what more machines would give.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from learned_codes import load_learned_codes
from provenance import provenance

from phpq.cluster.connection import connected
from phpq.codes import CodeArray, Codebooks
from phpq.gallery import shards as gallery_shards
from phpq.gallery.records import row_checks
from phpq.gallery.store import GalleryStore
from phpq.serve.ray_shards import ray_shards
from phpq.serve.settings import Sharding
from serve import Request, measure, memory_mb, server

BOOKS = 8
CLASSES = 10_000
LABELS = 200
BLOCK = 1 << 20  # rows written at once
QUERIES = 64
TOP_K = 10
RECOVERY_SECONDS = 120.0  # a shard must be back by then
LIMITS = ("--rate", "0", "--max-waiting", "1024", "--timeout", "120")
_SECONDS = re.compile(rb'"seconds":[^,}]*')


@dataclass(frozen=True)
class Speed:
    """Queries per second of one arrangement."""

    codes: str
    served_by: str
    clients: int
    http_per_second: float
    http_p50_ms: float
    http_p99_ms: float
    handles_per_second: float | None
    errors: int
    identical: bool
    start_seconds: float
    front_mb: float
    shard_mb: float


@dataclass(frozen=True)
class Killed:
    """What clients saw when the process of a shard was killed."""

    codes: str
    shards: int
    replicas: int
    answers: int
    wrong: int
    errors: int
    error_window_s: float  # from the kill to the last error
    first_answer_s: float  # from the kill to the first answer of a request sent after it
    recovery_s: float  # from the kill until answers came as fast as half of before


def draw(kind: str, rows: int) -> CodeArray:
    """Return (rows, BOOKS) uint8."""
    if kind == "learned":
        return load_learned_codes(BOOKS).gallery(rows, CLASSES, seed=0)
    return np.random.default_rng(0).integers(0, 256, (rows, BOOKS), dtype=np.uint8)


def make_gallery(path: Path, codes: CodeArray) -> Codebooks:
    """Write a gallery with an untrained model, by columns: 10 million records would take long."""
    import torch

    from phpq.config import RunConfig, with_bits
    from phpq.gallery import Gallery
    from phpq.model import TorchModel, build_method, resolve_device
    from phpq.model.checkpoint import ModelCard

    config = with_bits(RunConfig(), 8 * BOOKS)
    config = replace(config, model=replace(config.model, backbone="resnet18", weights="none"))
    torch.manual_seed(0)
    card = ModelCard(config=config, class_names=tuple("abcdefghij"), dataset="drawn")
    model = TorchModel(build_method(config, 10), card, device=resolve_device("cpu"), epochs=0)
    Gallery.create(path, model)
    dataset = GalleryStore.open(path).dataset
    dataset.add_columns(pa.schema([pa.field("year", pa.int64())]))
    names = pa.array([f"species {n:03}" for n in range(LABELS)])
    for start in range(0, len(codes), BLOCK):
        block = codes[start : start + BLOCK]
        rows = np.arange(start, start + len(block), dtype=np.int64)
        columns = {
            "row": pa.array(rows),
            "id": pa.array(rows).cast(pa.string()),
            "uri": pa.nulls(len(rows), pa.string()),
            "label": names.take(pa.array(rows % LABELS)),
            "sha256": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(32), len(rows), [None, pa.py_buffer(bytes(32 * len(rows)))]
            ),
            "code": pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), BOOKS),
            "check": pa.array(row_checks(rows, block)),
            "year": pa.array(2000 + rows % 25),
        }
        table = pa.table({name: columns[name] for name in dataset.schema.names})
        dataset = lance.write_dataset(table, dataset, mode="append")
    return model.codebooks


def searches(codes: CodeArray) -> list[str]:
    """Return addresses of searches: by the codes of rows, some with filters, offsets and by id."""
    generator = np.random.default_rng(1)
    rows = generator.integers(0, len(codes), QUERIES)
    found = []
    for number, row in enumerate(rows.tolist()):
        options: list[tuple[str, str]] = [("code", codes[row].tobytes().hex())]
        if number % 8 == 5:
            options = [("id", str(row))]
        if number % 8 == 6:
            options += [("where", f"year = {2000 + number % 25}")]
        if number % 8 == 7:
            options += [("label", "species 007"), ("label", "species 100"), ("offset", "7")]
        options += [("top_k", str(TOP_K if number % 8 < 5 else 50))]
        found.append(f"/api/v1/search?{urllib.parse.urlencode(options)}")
    return found


def fetch(address: str, paths: list[str]) -> list[bytes]:
    """Return what a server answers, without the time that it took."""
    answers = []
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=300)) as line:
        for path in paths:
            line.request("GET", path)
            answer = line.getresponse()
            answers.append(_SECONDS.sub(b"", answer.read()))
            if answer.status != 200:
                sys.exit(f"{path}: {answer.status} {answers[-1]!r}")
    return answers


def asks(paths: list[str]) -> Any:
    """Return the plain searches as requests."""
    plain = [path for path in paths if "code=" in path and "where" not in path and "l=" not in path]

    def ask(number: int) -> Request:
        return "GET", plain[number % len(plain)], b"", {}

    return ask


def replicas() -> dict[int, int]:
    """Return the processes of shards that descend from this one, and their shards."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_text("utf-8", errors="replace")
            # A replica that is at work adds what it does to its name.
            match = re.match(r"ray::ServeReplica:phpq-.*:shard-(\d+)", name)
            if match and descends(int(process.name)):
                found[int(process.name)] = int(match[1])
        except OSError:
            continue
    return found


def descends(pid: int) -> bool:
    """Say whether a process was started by this one, or by one that was."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


def through_handles(
    folder: Path, codebooks: Codebooks, codes: CodeArray, sharding: Sharding, seconds: float
) -> float:
    """Return queries per second that threads of this process get from the shards, merged."""
    rows = np.random.default_rng(2).integers(0, len(codes), 256)
    tables = codebooks.lookup_tables(codebooks.decode(codes[rows]))
    counts = [0] * 16
    with ray_shards(folder, codebooks, sharding) as shards:
        parts = shards.open(GalleryStore.open(folder), codebooks)
        end = time.monotonic() + seconds

        def run(place: int) -> None:
            while time.monotonic() < end:
                row = (place + 16 * counts[place]) % len(tables)
                query = gallery_shards.Search(tables[row : row + 1], TOP_K)
                asked = gallery_shards.Request("search", (query,))
                found = parts.ask(dict.fromkeys(range(sharding.shards), asked))
                gallery_shards.merge_ranked([found[number] for number in sorted(found)], TOP_K)
                counts[place] += 1

        threads = [threading.Thread(target=run, args=(place,)) for place in range(len(counts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / seconds


def kill_one(
    address: str, paths: list[str], expected: list[bytes], *, seconds: float, most: float
) -> dict[str, Any]:
    """Kill the process of the last shard while clients compare answers; sum up what they saw."""
    events: list[tuple[float, float, str]] = []  # sent, answered, what it was
    stop = threading.Event()

    def run(place: int) -> None:
        host = address.removeprefix("http://")
        with closing(http.client.HTTPConnection(host, timeout=300)) as line:
            number = place
            while not stop.is_set():
                sent = time.monotonic()
                try:
                    line.request("GET", paths[number % len(paths)])
                    answer = line.getresponse()
                    body = _SECONDS.sub(b"", answer.read())
                    right = body == expected[number % len(paths)]
                    kind = "error" if answer.status != 200 else "right" if right else "wrong"
                except (OSError, http.client.HTTPException):
                    line.close()
                    kind = "error"
                events.append((sent, time.monotonic(), kind))
                number += 8

    clients = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(8)]
    for client in clients:
        client.start()
    time.sleep(seconds)
    before = len(events) / seconds
    shards = replicas()
    victim = max(shards, key=lambda pid: shards[pid])
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    recovery = most
    while time.monotonic() < killed + most:
        time.sleep(1.0)
        now = time.monotonic()
        good = [at for sent, at, kind in list(events) if kind == "right" and sent > now - 1.0]
        if len(good) >= before / 2 and len(replicas()) == len(shards):
            recovery = now - killed
            break
    time.sleep(seconds)
    stop.set()
    for client in clients:
        client.join()
    errors = [at - killed for _, at, kind in events if kind == "error"]
    later = [at - killed for sent, at, kind in events if kind == "right" and sent > killed]
    return {
        "answers": sum(kind == "right" for *_, kind in events),
        "wrong": sum(kind == "wrong" for *_, kind in events),
        "errors": len(errors),
        "error_window_s": max(errors, default=0.0),
        "first_answer_s": min(later, default=float("inf")),
        "recovery_s": recovery,
    }


class Bench:
    """One kind of codes: its gallery, what is right, and what was measured."""

    def __init__(self, folder: Path, kind: str, options: argparse.Namespace) -> None:
        self.kind, self.options = kind, options
        self.folder = folder / f"{kind}.gallery"
        start = time.perf_counter()
        self.codes = draw(kind, options.rows)
        self.codebooks = make_gallery(self.folder, self.codes)
        self.build_seconds = time.perf_counter() - start
        self.paths = searches(self.codes)
        self.right: list[bytes] = []
        self.speeds: list[Speed] = []
        self.kills: list[Killed] = []

    def single(self) -> None:
        """Measure the server of one process, and keep its answers as the right ones."""
        with self._served("one process") as (address, pid, started):
            self.right = fetch(address, self.paths)
            self._measure("one process", address, pid, started, True, None)

    def sharded(self, cluster: str, count: int) -> None:
        """Measure a server with shards; with two of them, kill one as well."""
        flags = ("--ray", cluster, "--shards", str(count))
        with self._served(f"{count} shards", *flags) as (address, pid, started):
            same = fetch(address, self.paths) == self.right
            sharding = Sharding(address=cluster, shards=count)
            direct = through_handles(
                self.folder, self.codebooks, self.codes, sharding, self.options.seconds
            )
            self._measure(f"{count} shards", address, pid, started, same, direct)
            if count == self.options.kill:
                self._kill(address, count, 1)

    def with_replicas(self, cluster: str) -> None:
        """Kill one of two replicas of a shard."""
        count = self.options.kill
        flags = ("--ray", cluster, "--shards", str(count), "--replicas", "2")
        with self._served(f"{count} x 2", *flags) as (address, _, _):
            if fetch(address, self.paths) != self.right:
                sys.exit("The answers with two replicas differ.")
            self._kill(address, count, 2)

    def _kill(self, address: str, shards: int, copies: int) -> None:
        say(f"{self.kind}: killing one of {shards} x {copies} processes")
        seen = kill_one(
            address,
            self.paths,
            self.right,
            seconds=min(5.0, self.options.seconds),
            most=RECOVERY_SECONDS,
        )
        self.kills.append(Killed(self.kind, shards, copies, **seen))
        say(str(self.kills[-1]))

    def _measure(
        self,
        name: str,
        address: str,
        pid: int,
        started: float,
        same: bool,
        direct: float | None,
    ) -> None:
        shards = list(replicas())
        for clients in self.options.clients:
            load = measure(
                address,
                name,
                asks(self.paths),
                clients=clients,
                seconds=self.options.seconds,
                most=1_000_000,
            )
            self.speeds.append(
                Speed(
                    codes=self.kind,
                    served_by=name,
                    clients=clients,
                    http_per_second=load.per_second,
                    http_p50_ms=load.p50_ms,
                    http_p99_ms=load.p99_ms,
                    handles_per_second=direct,
                    errors=load.errors,
                    identical=same,
                    start_seconds=started,
                    front_mb=memory_mb(pid),
                    shard_mb=sum(map(memory_mb, shards)) / max(1, len(shards)),
                )
            )
            say(str(self.speeds[-1]))

    @contextmanager
    def _served(self, name: str, *flags: str) -> Iterator[tuple[str, int, float]]:
        say(f"{self.kind}: {name}")
        start = time.perf_counter()
        with server(self.folder, *LIMITS, *flags) as (address, pid):
            yield address, pid, time.perf_counter() - start


def say(text: str) -> None:
    """Tell what is under way."""
    print(text, file=sys.stderr, flush=True)


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements, ready for JSON."""
    begin = time.perf_counter()
    most = max(*options.shards, 2 * options.kill)
    benches = []
    with connected("local", num_cpus=most, object_store_memory=100 * 1024 * 1024) as ray:
        cluster = ray.get_runtime_context().gcs_address
        for kind in options.codes:
            say(f"{kind}: drawing {options.rows:,} rows")
            bench = Bench(folder, kind, options)
            benches.append(bench)
            bench.single()
            for count in options.shards:
                bench.sharded(cluster, count)
            if kind == options.codes[-1]:
                bench.with_replicas(cluster)
    speeds = [asdict(speed) for bench in benches for speed in bench.speeds]
    kills = [asdict(kill) for bench in benches for kill in bench.kills]
    return {
        "rows": options.rows,
        "bytes_per_code": BOOKS,
        "queries_compared": QUERIES,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "build_seconds": {bench.kind: round(bench.build_seconds, 1) for bench in benches},
        "seconds": round(time.perf_counter() - begin, 1),
        "speeds": speeds,
        "kills": kills,
        "checks": {
            "identical": all(speed["identical"] for speed in speeds),
            "no_errors": not any(speed["errors"] for speed in speeds),
            "no_wrong_answer": not any(kill["wrong"] for kill in kills),
            "errors_end_with_recovery": all(
                kill["error_window_s"] <= kill["recovery_s"] for kill in kills
            ),
            "recovered": all(kill["recovery_s"] < RECOVERY_SECONDS for kill in kills),
        },
    }


def table(result: dict[str, Any]) -> str:
    """Lay the measurements out for people."""
    lines = [
        f"{result['rows']:,} rows of {result['bytes_per_code']} bytes, {result['machine']}; "
        f"{result['seconds']:.0f} s in all",
        "",
        f"{'codes':9}{'served by':13}{'clients':>8}{'HTTP q/s':>10}{'p50 ms':>9}{'p99 ms':>9}"
        f"{'handles q/s':>13}{'errors':>8}{'identical':>11}{'start s':>9}{'front MB':>10}"
        f"{'shard MB':>10}",
    ]
    for speed in result["speeds"]:
        direct = speed["handles_per_second"]
        lines.append(
            f"{speed['codes']:9}{speed['served_by']:13}{speed['clients']:>8}"
            f"{speed['http_per_second']:>10.1f}{speed['http_p50_ms']:>9.1f}"
            f"{speed['http_p99_ms']:>9.1f}{'-' if direct is None else f'{direct:.1f}':>13}"
            f"{speed['errors']:>8}{'yes' if speed['identical'] else 'NO':>11}"
            f"{speed['start_seconds']:>9.1f}{speed['front_mb']:>10.0f}{speed['shard_mb']:>10.0f}"
        )
    lines += [
        "",
        f"{'killed':9}{'shards':>8}{'replicas':>10}{'answers':>9}{'wrong':>7}{'errors':>8}"
        f"{'last error s':>14}{'first answer s':>16}{'recovered s':>13}",
    ]
    for kill in result["kills"]:
        lines.append(
            f"{kill['codes']:9}{kill['shards']:>8}{kill['replicas']:>10}{kill['answers']:>9}"
            f"{kill['wrong']:>7}{kill['errors']:>8}{kill['error_window_s']:>14.1f}"
            f"{kill['first_answer_s']:>16.2f}{kill['recovery_s']:>13.1f}"
        )
    checks = ", ".join(f"{name} {value}" for name, value in result["checks"].items())
    return "\n".join([*lines, "", f"checks: {checks}"])


def main() -> None:
    """Run everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--codes", nargs="+", default=["learned", "random"])
    parser.add_argument("--kill", type=int, default=2, help="shards of the runs with a kill")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {"made": provenance(options)} | run(Path(folder), options)
    print(json.dumps(result, indent=2) if options.json else table(result))
    if not all(result["checks"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
