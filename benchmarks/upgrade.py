"""A gallery is upgraded while a real server answers 8 clients: nothing fails, nothing is mixed.

    python benchmarks/upgrade.py --model RUN --rows 1000000 --bits 16 32
    python benchmarks/upgrade.py --model RUN --images cub200:FOLDER --to OTHER_RUN

The first makes a gallery of its own codebooks with made-up embeddings, as long as the model's, and
gives it another length of codes from what it keeps. The second indexes images with one
model and gives them another. Clients search by id and by upload all the while: before, during the
upgrade, after it, and after the rollback. The length of a query's code, or the code itself, tells
which version answered; all answers of one version to one query must be the same, and those by id
what the library finds in that version. Prints JSON; exit code 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from provenance import provenance

from serve import Request, by_upload, draw_uploads, memory_mb, server, wait_for

KINDS = 200
CLIENTS = 8
QUERIES = 40  # ids that are asked for, again and again
FIRST, STEP = 5000, 50_000  # rows of the first commit, and of others


def make_rows(folder: Path, model: str, rows: int, bits: int) -> None:
    """Write a gallery of made-up embeddings around made-up kinds."""
    from phpq.gallery import Gallery, Record
    from phpq.gallery.owned import code_records
    from phpq.gallery.store import GalleryStore

    gallery = Gallery.create(folder, model, codebooks="own", bits=bits)
    store = GalleryStore.open(folder)
    generator = np.random.default_rng(0)
    dim = gallery.manifest.embedding_dim
    centres = generator.normal(size=(KINDS, dim)).astype(np.float32)
    edges = [0, *range(FIRST, rows, STEP), rows]  # codebooks are fitted to the first few
    for start, stop in pairwise(edges):
        numbers = np.arange(start, stop)
        drawn = generator.normal(size=(len(numbers), dim)).astype(np.float32)
        vectors = centres[numbers % KINDS] + 0.8 * drawn
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        records = [
            Record(
                f"{number:08}.jpg",
                f"/made/up/{number:08}.jpg",
                f"kind {number % KINDS:03}",
                number.to_bytes(32, "big"),
                np.empty(0, np.uint8),
                {"year": 2000 + number % 25},
                vector,
            )
            for number, vector in zip(numbers.tolist(), vectors.astype(np.float16), strict=True)
        ]
        store.put(records, finish=lambda records: code_records(store, records, store))
    store.merge_files(above=1)


class Clients:
    """Threads that search without a pause, and remember what they were told."""

    def __init__(self, address: str, ids: list[str], uploads: list[bytes]) -> None:
        self._host = address.removeprefix("http://")
        upload = by_upload(uploads)
        self.requests: list[tuple[str, Request]] = [
            (name, ("GET", f"/api/v1/search?id={quote(name, safe='')}&top_k=10", b"", {}))
            for name in ids
        ]
        self.requests += [(f"upload {n}", upload(n)) for n in range(len(uploads))]
        self.phase, self.failed = "before", 0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        # By query and by the code that it has in a version: what was answered.
        self.told: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let everybody come to an end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=120)
        while not self._stop.is_set():
            number += 1
            name, (method, path, body, headers) = self.requests[number % len(self.requests)]
            phase, start = self.phase, time.perf_counter()
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                content = json.loads(response.read())
                good = response.status == 200
            except (OSError, http.client.HTTPException, ValueError):
                connection.close()
                good = False
            with self._lock:
                self.seconds[phase].append(time.perf_counter() - start)
                self.failed += not good
                if good:
                    hits = [(hit["id"], round(hit["score"], 4)) for hit in content["hits"]]
                    self.told[name, content["query"]["code"]].add(json.dumps(hits))


def phpq(*words: str) -> tuple[dict[str, Any], float]:
    """Run a command; returns its JSON and its seconds."""
    start = time.monotonic()
    command = [sys.executable, "-c", "from phpq.cli import main; main()", *words, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), time.monotonic() - start


def expected(folder: Path, version: int, ids: list[str]) -> dict[tuple[str, str], str]:
    """Return what the library finds in a version, by id and code."""
    from phpq.gallery.models import load_model
    from phpq.gallery.store import GalleryStore
    from phpq.gallery.view import GalleryView, Page

    store = GalleryStore.open(folder, version=version)
    view = GalleryView(store, load_model(folder, store.manifest, "cpu").codebooks)
    answers = {}
    for name in ids:
        place, record = view.find(name)
        found = view.search(view.query_of(record), Page(top_k=10), leave_out=(place,))
        told = json.dumps([(hit.id, round(hit.score, 4)) for hit in found])
        answers[name, record.code.tobytes().hex()] = told
    return answers


def watch(folder: Path, ids: list[str], change: list[str], pause: float) -> dict[str, Any]:
    """Serve a gallery, change it and take that back; returns what clients saw."""
    from phpq.gallery.store import GalleryStore

    versions = [GalleryStore.open(folder).version]
    with server(folder, "--rate", "0", "--max-waiting", "100") as (address, pid):

        def serve(version: int) -> None:
            asked = f"{address}/api/v1/info"
            wait_for(lambda: httpx.get(asked, timeout=60).json()["version"] >= version)

        clients = Clients(address, ids, draw_uploads(4))
        try:
            time.sleep(pause)
            clients.phase = "during"
            report, seconds = phpq("gallery", "upgrade", str(folder), *change)
            versions.append(report["version"])
            serve(report["version"])
            clients.phase = "after"
            time.sleep(pause)
            back, rollback_seconds = phpq("gallery", "upgrade", str(folder), "--rollback")
            serve(back["version"])
            clients.phase = "back"
            time.sleep(pause)
        finally:
            clients.close()
        server_mb = memory_mb(pid)
    wanted = {key: told for each in versions for key, told in expected(folder, each, ids).items()}
    by_id = {key: told for key, told in clients.told.items() if not key[0].startswith("upload ")}
    return {
        "images": report["images"],
        "bits": [back["bits"], report["bits"]],
        "upgrade_seconds": round(seconds, 1),
        "rollback_seconds": round(rollback_seconds, 1),
        "requests": {phase: len(times) for phase, times in clients.seconds.items()},
        "p50_ms": {name: _ms(times, 50) for name, times in clients.seconds.items()},
        "p99_ms": {name: _ms(times, 99) for name, times in clients.seconds.items()},
        "failed": clients.failed,
        "two_answers": sum(len(told) != 1 for told in clients.told.values()),
        "not_as_the_library": sum({wanted.get(key, "")} != told for key, told in by_id.items()),
        "server_mb": round(server_mb),
        "upgrade_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000),
    }


def _ms(seconds: list[float], percent: float) -> float:
    return round(float(np.percentile(seconds, percent)) * 1000, 1)


def make(folder: Path, options: argparse.Namespace) -> None:
    """Make the gallery."""
    if options.images:
        phpq("index", str(folder), options.images, "--model", options.model, "--own-codebooks")
    else:
        make_rows(folder, options.model, options.rows, options.bits[0])


def main() -> None:
    """Run one of the two, and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="a run with a general embedding")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, nargs=2, default=(16, 32), help="before and after")
    parser.add_argument("--gallery", type=Path, help="where it is made, or was made before")
    parser.add_argument("--images", help="what phpq index takes; in place of made-up rows")
    parser.add_argument("--to", help="with --images: the other model")
    parser.add_argument("--seconds", type=float, default=20.0, help="before, after and back")
    options = parser.parse_args()
    folder = options.gallery or Path(tempfile.mkdtemp(prefix="phpq-upgrade-")) / "made-up.gallery"
    if not folder.exists():
        make(folder, options)
    change = ["--model", options.to] if options.images else ["--bits", str(options.bits[1])]
    from phpq.gallery.store import GalleryStore

    names = GalleryStore.open(folder).dataset.to_table(columns=["id"])["id"].to_pylist()
    seen = watch(folder, names[:: max(1, len(names) // QUERIES)][:QUERIES], change, options.seconds)
    print(json.dumps({"made": provenance(options), **seen}, indent=2))
    wrong = seen["failed"] or seen["two_answers"] or seen["not_as_the_library"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
