"""The server under load: a made-up gallery, a real server on loopback, real clients.

    python benchmarks/serve.py                    # 1,000,000 rows, clients: 1, 8 and 64
    python benchmarks/serve.py --rows 20000 --seconds 2 --json

Measured are requests per second, p50, p95 and p99 of searches by id and by upload, errors, and the
memory of the server. Then more clients than it takes: it must answer 429 or 503 and `/health` all
the while. Then a writer moves every image from one generation to the next: no answer may hold two
generations. Exit code 1 if one of these does not hold. Codes are made up, the network is not
trained: neither speed nor load depends on what was learned.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from provenance import provenance

LABELS = 200
GENERATION_ROWS = 300
START_SECONDS = 300.0
HEALTH = """
import http.client, json, sys, time
host, seconds = sys.argv[1], float(sys.argv[2])
end, times, sick = time.monotonic() + seconds, [], 0
while time.monotonic() < end:
    start = time.perf_counter()
    try:
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", "/health")
        sick += connection.getresponse().status != 200
        connection.close()
    except OSError:
        sick += 1
    times.append(time.perf_counter() - start)
    time.sleep(0.05)
print(json.dumps([times, sick]))
"""


@dataclass(frozen=True)
class Load:
    """What some clients saw."""

    query: str
    clients: int
    requests: int
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    errors: int


def make_gallery(folder: Path, rows: int, *, backbone: str) -> Path:
    """Write a gallery of made-up codes with an untrained model; returns its folder."""
    import torch

    from phpq.config import RunConfig
    from phpq.gallery import Gallery, Record
    from phpq.gallery.advice import draw_codes
    from phpq.gallery.store import GalleryStore
    from phpq.model import TorchModel, build_method, resolve_device
    from phpq.model.checkpoint import ModelCard

    config = RunConfig()
    config = replace(config, model=replace(config.model, backbone=backbone, weights="none"))
    torch.manual_seed(0)
    network = build_method(config, 10)
    card = ModelCard(config=config, class_names=tuple("abcdefghij"), dataset="made up")
    model = TorchModel(network, card, device=resolve_device("cpu"), epochs=0)
    path = folder / "made-up.gallery"
    Gallery.create(path, model)
    store = GalleryStore.open(path)
    generator = np.random.default_rng(0)
    # Codes that repeat about as learned ones do.
    books, size = model.codebooks.num_codebooks, model.codebooks.codebook_size
    sample = generator.integers(0, size, (5000, books), dtype=np.uint8)
    codes = draw_codes(sample[generator.integers(0, 900, 5000)], rows, generator)
    step = 100_000
    for start in range(0, rows, step):
        store.put(
            [
                Record(
                    f"{n % LABELS:03}/{n:08}.jpg",
                    f"/made/up/{n:08}.jpg",
                    f"species {n % LABELS:03}",
                    n.to_bytes(32, "big"),
                    codes[n],
                    {"year": 2000 + n % 25, "place": f"place {n % 97}"},
                )
                for n in range(start, min(start + step, rows))
            ]
        )
    store.merge_files(above=1)
    return path


def draw_uploads(count: int, size: tuple[int, int] = (500, 375)) -> list[bytes]:
    """Return JPEGs of the size of the photographs of fine-grained benchmarks."""
    uploads = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        small = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        noise = generator.normal(0, 6, (size[1], size[0], 3))
        pixels = (np.asarray(image) + noise).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=90)
        uploads.append(stream.getvalue())
    return uploads


@contextmanager
def server(gallery: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run `phpq serve` in a child process; yields its address and process number."""
    command = [sys.executable, "-c", "from phpq.cli import main; main()", "serve", str(gallery)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--device", "cpu", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if line.startswith("page http"):
                address = line.split()[1]
                break
        if not address:
            sys.exit("The server did not start.")
        # What it says later must not fill the pipe.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        wait_for(lambda: httpx.get(f"{address}/ready").status_code == 200)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a server does what it should."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if condition():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    sys.exit("The server did not become ready.")


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB; 0 where it cannot be known."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return 0.0
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


Request = tuple[str, str, bytes, dict[str, str]]  # method, path, body, headers
Ask = Callable[[int], Request]


def by_id(rows: int) -> Ask:
    """Return searches by the id of a row that differs from request to request."""

    def ask(number: int) -> Request:
        n = (number * 2_654_435_761) % rows
        return "GET", f"/api/v1/search?id={n % LABELS:03}%2F{n:08}.jpg&top_k=10", b"", {}

    return ask


def by_upload(uploads: list[bytes]) -> Ask:
    """Return searches by upload."""
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    bodies = [head + content + b"\r\n--edge--\r\n" for content in uploads]

    def ask(number: int) -> Request:
        return "POST", "/api/v1/search", bodies[number % len(bodies)], headers

    return ask


def send(connection: http.client.HTTPConnection, request: Request) -> int:
    """Send one request and read the answer; returns its status, 0 if there was none."""
    method, path, body, headers = request
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0
    return answer.status


def drive(
    address: str, ask: Ask, *, clients: int, seconds: float, most: int
) -> tuple[list[float], Counter[int], float]:
    """Let clients ask one request after the other, each in a thread with its own connection.

    Returns:
        The seconds of each request, how often each status came (0: no answer), and the time it
        took in all.
    """
    times: list[float] = []
    statuses: Counter[int] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def run(place: int) -> None:
        own_times, own_statuses = [], Counter[int]()
        host = address.removeprefix("http://")
        with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
            for number in range(most // clients + 1):
                if time.monotonic() >= end:
                    break
                start = time.perf_counter()
                own_statuses[send(connection, ask(place + clients * number))] += 1
                own_times.append(time.perf_counter() - start)
        with lock:
            times.extend(own_times)
            statuses.update(own_statuses)

    start = time.perf_counter()
    threads = [threading.Thread(target=run, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, statuses, time.perf_counter() - start


def measure(address: str, name: str, ask: Ask, *, clients: int, seconds: float, most: int) -> Load:
    """Drive the server and sum up."""
    times, statuses, took = drive(address, ask, clients=clients, seconds=seconds, most=most)
    p50, p95, p99 = (1000 * np.percentile(times, [50, 95, 99])).tolist()
    errors = sum(count for status, count in statuses.items() if status != 200)
    return Load(name, clients, len(times), len(times) / took, p50, p95, p99, errors)


def overload(gallery: Path, ask: Ask, *, clients: int, seconds: float) -> dict[str, Any]:
    """Ask far more than the server takes, and look at its health meanwhile."""
    with server(gallery, "--rate", "500", "--max-waiting", "8") as (address, _):
        # In a process of its own: here it would wait for its turn among the clients.
        command = [sys.executable, "-c", HEALTH, address.removeprefix("http://"), str(seconds)]
        looking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        _, statuses, _ = drive(address, ask, clients=clients, seconds=seconds, most=1_000_000)
        health, sick = json.loads(looking.communicate()[0])
    refused = statuses[429] + statuses[503]
    other = sum(statuses.values()) - refused - statuses[200]
    return {
        "clients": clients,
        "answered": statuses[200],
        "refused_429": statuses[429],
        "refused_503": statuses[503],
        "other": other,
        "health_checks": len(health),
        "health_failed": sick,
        "health_p50_ms": 1000 * float(np.median(health)),
        "health_p95_ms": 1000 * float(np.percentile(health, 95)),
        "health_max_ms": 1000 * max(health),
        "held": refused > 0 and other == 0 and sick == 0,
    }


def reload_during_writes(folder: Path, *, seconds: float, backbone: str) -> dict[str, Any]:
    """Move a whole gallery from generation to generation while clients read all of it."""
    from phpq.gallery import Record
    from phpq.gallery._part import find_part
    from phpq.gallery.store import GalleryStore

    gallery = make_gallery(folder, GENERATION_ROWS, backbone=backbone)
    store = GalleryStore.open(gallery)
    names = [f"g/{n:04}.jpg" for n in range(GENERATION_ROWS)]
    code = find_part(store).codes()

    def write(generation: int) -> None:
        store.put(
            [
                Record(name, None, f"generation {generation}", bytes(32), code[n])
                for n, name in enumerate(names)
            ]
        )

    write(0)
    store.delete(where="id NOT LIKE 'g/%'")
    half: list[str] = []
    errors: list[str] = []
    seen: set[str] = set()
    asked = 0
    with server(gallery, "--rate", "0") as (address, _):
        stop = threading.Event()

        def read() -> None:
            nonlocal asked
            params = {"code": code[0].tobytes().hex(), "top_k": GENERATION_ROWS}
            with httpx.Client(base_url=address, timeout=60) as client:
                while not stop.is_set():
                    answer = client.get("/api/v1/search", params=params).json()
                    if "hits" not in answer:
                        errors.append(answer["error"]["message"])
                        continue
                    labels = {hit["label"] for hit in answer["hits"]}
                    seen.update(labels)
                    asked += 1
                    if len(labels) != 1 or len(answer["hits"]) != GENERATION_ROWS:
                        half.append(f"{len(answer['hits'])} hits of {sorted(labels)}")

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        end, generation = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            generation += 1
            write(generation)
            if generation % 5 == 0:
                store.compact()  # removes the version that is read
        stop.set()
        for reader in readers:
            reader.join()
    return {
        "generations_written": generation,
        "generations_seen": len(seen),
        "answers": asked,
        "half_states": len(half),
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
        "held": not half and not errors and len(seen) > 1,
    }


def main() -> None:
    """Run everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--most", type=int, default=20_000, help="requests of each")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--overload-clients", type=int, default=192)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {"made": provenance(options)} | run(Path(folder), options)
    print(json.dumps(result, indent=2) if options.json else table(result))
    if not all(result["checks"].values()):
        sys.exit(1)


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements, ready for JSON."""
    start = time.perf_counter()
    gallery = make_gallery(folder, options.rows, backbone=options.backbone)
    built = time.perf_counter() - start
    uploads = draw_uploads(16)
    asks = {"id": by_id(options.rows), "upload": by_upload(uploads)}
    loads: list[Load] = []
    start = time.perf_counter()
    limits = ("--rate", "0", "--max-waiting", "256", "--timeout", "120")
    with server(gallery, *limits) as (address, pid):
        loaded = time.perf_counter() - start
        for ask in asks.values():  # warm: caches, first batches
            measure(address, "warm", ask, clients=8, seconds=3, most=200)
        before = memory_mb(pid)
        for clients in options.clients:
            for name, ask in asks.items():
                loads.append(
                    measure(
                        address,
                        name,
                        ask,
                        clients=clients,
                        seconds=options.seconds,
                        most=options.most,
                    )
                )
        middle = memory_mb(pid)
        for name, ask in asks.items():  # the largest load again: does memory go on growing?
            measure(
                address,
                name,
                ask,
                clients=max(options.clients),
                seconds=options.seconds,
                most=20_000,
            )
        after = memory_mb(pid)
    over = overload(
        gallery, asks["upload"], clients=options.overload_clients, seconds=options.seconds
    )
    (folder / "small").mkdir()
    moving = reload_during_writes(
        folder / "small", seconds=options.seconds, backbone=options.backbone
    )
    return {
        "rows": options.rows,
        "backbone": options.backbone,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "build_seconds": round(built, 1),
        "start_seconds": round(loaded, 1),
        "loads": [asdict(load) for load in loads],
        "memory_mb": {"before": before, "after_all": middle, "after_again": after},
        "overload": over,
        "reload_during_writes": moving,
        "checks": {
            "no_errors": not any(load.errors for load in loads),
            # Allocators keep some room; growth with the number of requests would be far more.
            "no_memory_growth": after <= 1.05 * middle + 20,
            "overload_refused_and_healthy": over["held"],
            "no_half_state": moving["held"],
        },
    }


def table(result: dict[str, Any]) -> str:
    """Lay the measurements out for people."""
    lines = [
        f"{result['rows']:,} rows, {result['backbone']}, {result['machine']}; built in "
        f"{result['build_seconds']} s, server ready after {result['start_seconds']} s",
        "",
        f"{'query':8}{'clients':>8}{'requests':>10}{'a second':>10}"
        f"{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'errors':>8}",
    ]
    for load in result["loads"]:
        lines.append(
            f"{load['query']:8}{load['clients']:>8}{load['requests']:>10}{load['per_second']:>10.1f}"
            f"{load['p50_ms']:>9.1f}{load['p95_ms']:>9.1f}{load['p99_ms']:>9.1f}{load['errors']:>8}"
        )
    memory = " -> ".join(f"{value:.0f}" for value in result["memory_mb"].values())
    lines += ["", f"memory of the server, MB: {memory}"]
    for name in ("overload", "reload_during_writes", "checks"):
        said = ", ".join(
            f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in result[name].items()
        )
        lines.append(f"{name}: {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
