"""Kill a process that writes to a gallery, again and again, and look at what is left.

    python benchmarks/kill_gallery.py --kills 1000

A worker adds, replaces, deletes and compacts; it is killed (SIGKILL) at a random moment. Then the
gallery must open, be sound, hold exactly what was committed, with the interrupted change either
whole or not there, and the interrupted change must run to its end when it is made again. Prints a
table, or JSON. Codes are made up: no model, no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from provenance import provenance

from phpq.codes import Codebooks, FloatArray
from phpq.config import DataConfig
from phpq.gallery import GalleryStore, Record, ingest, verify_store
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import new_manifest

BOOKS, SIZE, SUB_DIM = 2, 16, 3
NAMES = 400  # ids that there are: changes meet each other
KINDS = ("add", "bulk", "delete", "compact")
State = dict[str, bytes]  # id -> code


@dataclass(frozen=True)
class Change:
    """One change of a gallery: what a worker was told to do."""

    kind: str  # add, delete, compact or bulk
    ids: tuple[str, ...] = ()
    salt: int = 0

    def after(self, state: Mapping[str, bytes]) -> State:
        """Return the state that the change leads to."""
        result = dict(state)
        for name in self.ids:
            if self.kind == "delete":
                result.pop(name, None)
            else:
                result[name] = code_of(name, self.salt).tobytes()
        return result


class FakeModel:
    """Codes from pixels: pixel (0, 0) holds what the code will be."""

    codebooks = Codebooks(
        np.stack(
            [
                (lambda v: v / np.linalg.norm(v, axis=1, keepdims=True))(
                    np.random.default_rng(book).normal(size=(SIZE, SUB_DIM)).astype(np.float32)
                )
                for book in range(BOOKS)
            ]
        )
    )
    card = SimpleNamespace(config=SimpleNamespace(data=DataConfig(store_size=2, fit="squash")))

    def embed_pixels(
        self,
        pixels: np.ndarray[Any, np.dtype[np.uint8]],
        *,
        batch_size: int = 64,
        space: str = "learned",
    ) -> FloatArray:
        """Return the codewords that the pixels name: (n, D) float32."""
        return self.codebooks.decode(np.ascontiguousarray(pixels[:, :BOOKS, 0, 0] // 16))


def code_of(name: str, salt: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the code that an image of this name has after a change with this salt."""
    return np.random.default_rng([int(name), salt]).integers(SIZE, size=BOOKS, dtype=np.uint8)


def draw_change(generator: random.Random, state: State, kind: str) -> Change:
    """Draw the next change, of a kind, or of any if that is empty."""
    kind = kind or generator.choice(("add", *KINDS))
    salt = generator.randrange(1 << 30)
    if kind == "delete":
        known = sorted(state)
        return Change(kind, tuple(generator.sample(known, min(len(known), 30))))
    if kind == "compact":
        return Change(kind)
    count = 60 if kind == "bulk" else generator.randrange(1, 40)
    return Change(kind, tuple(map(str, generator.sample(range(NAMES), count))), salt)


def apply_change(folder: Path, change: Change, committed: Callable[[int], None]) -> None:
    """Make a change; `committed` hears how many images a bulk add has written so far."""
    store = GalleryStore.open(folder)
    if change.kind == "delete":
        store.delete(change.ids)
    elif change.kind == "compact":
        store.compact()
    elif change.kind == "add":
        store.put([_record(name, change.salt) for name in change.ids])
    else:
        _bulk_add(store, change, committed)


def _record(name: str, salt: int) -> Record:
    return Record(name, None, None, bytes(32), code_of(name, salt))


def _bulk_add(store: GalleryStore, change: Change, committed: Callable[[int], None]) -> None:
    ingest.COMMIT_IMAGES = 8  # many commits, many moments to be killed in
    put, done = store.put, 0

    def put_and_tell(records: Any, **settings: Any) -> Any:
        nonlocal done
        written = put(records, **settings)
        done += len(records)
        committed(done)
        return written

    store.put = put_and_tell  # type: ignore[method-assign]
    rows = []
    for name in change.ids:
        first, second = (16 * code_of(name, change.salt)).tolist()
        # The salt makes the content, and so its hash, another one each time.
        image = Image.new("RGB", (2, 2), (first, second, change.salt % 251))
        rows.append({"id": name, "image": image})
    model: Any = FakeModel()
    ingest.Ingest(store, model, batch_size=4).run(rows, metadata={})


def read_state(folder: Path) -> State:
    """Open a gallery and return all that it holds."""
    store = GalleryStore.open(folder)
    state: State = {}
    rows = 0
    for table in batches(store):
        codes = table.column("code").to_pylist()
        for name, code in zip(table.column("id").to_pylist(), codes, strict=True):
            state[name] = bytes(code)
            rows += 1
    assert rows == len(state), "an id is there twice"
    find_part(store).codes()  # checks every row
    return state


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Fork and do some work there; returns the child's number and a pipe with what it says."""
    # Lance starts its threads when it is first used, which here is only ever in a child.
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        work(lambda line: void(os.write(writing, (line + "\n").encode())))
        os._exit(0)
    except BaseException as error:
        os.write(writing, f"failed {type(error).__name__}: {error}\n".encode())
        os._exit(1)


def void(_: object) -> None:
    """Return nothing."""


def answer_of(work: Callable[[Callable[[str], None]], None]) -> str:
    """Do some work in a child to its end; returns all that it said."""
    child, pipe = in_child(work)
    with os.fdopen(pipe) as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"The gallery did not survive: {said}")
    return said


def kill_worker(
    work: Callable[[Callable[[str], None]], None], *, begun: int, seconds: float
) -> list[str]:
    """Do some work in a child, and kill it some seconds after it has said "begin" `begun` times.

    Returns the lines that it said. A child that ends by itself ends the benchmark.
    """
    child, pipe = in_child(work)
    with os.fdopen(pipe) as stream:
        said: list[str] = []
        while sum(line.startswith("begin") for line in said) < begun:
            said.append(stream.readline())
            if not said[-1]:  # it has ended
                break
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        said += stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    failure = [line for line in said if line.startswith("failed")]
    if failure or not os.WIFSIGNALED(status):
        raise SystemExit(f"The worker ended by itself: {failure or said[-1:]}")
    return said


def kill_once(
    folder: Path, state: State, generator: random.Random, kind: str, took: dict[str, float]
) -> tuple[State, str, str]:
    """Start changes, kill, check, go on; returns the new state, the change and how it was left.

    The kill aims at a change of this kind: at a random moment of the time that one of its kind
    took before, and at its very beginning as long as that is not known.
    """
    changes: list[Change] = []
    planned = state
    aim = generator.randrange(5)
    for number in range(20):  # more than the worker will live to make
        changes.append(draw_change(generator, planned, kind if number == aim else ""))
        planned = changes[-1].after(planned)

    def work(say: Callable[[str], None]) -> None:
        for number, change in enumerate(changes):
            say(f"begin {number}")
            start = time.monotonic()
            apply_change(folder, change, lambda count: say(f"bulk {count}"))
            say(f"done {number} {time.monotonic() - start}")
        signal.pause()  # all done before the killer came: it comes yet

    said = kill_worker(work, begun=aim + 1, seconds=generator.random() * took.get(kind, 0.0))
    seconds = [float(line.split()[2]) for line in said if line.startswith("done")]
    finished = len(seconds)
    took |= {change.kind: spent for change, spent in zip(changes, seconds, strict=False)}
    for change in changes[:finished]:
        state = change.after(state)
    inside = sum(line.startswith("begin") for line in said) > finished
    hit = changes[finished] if inside else None
    last = said[-1].split()
    return check_and_go_on(folder, state, hit, int(last[1]) if last[0] == "bulk" else 0)


def check_and_go_on(
    folder: Path, state: State, hit: Change | None, written: int
) -> tuple[State, str, str]:
    """Open what is left, compare, and make the interrupted change again."""

    def work(say: Callable[[str], None]) -> None:
        found = read_state(folder)
        wanted = hit.after(state) if hit else state
        if found == state:
            left = "before"
        elif found == wanted:
            left = "after"
        else:
            assert hit is not None, "a change was lost"
            assert hit.kind == "bulk", "half a change is there"
            left = "part"
            parts = [
                Change("bulk", hit.ids[:count], hit.salt).after(state)
                for count in range(len(hit.ids))
            ]
            assert found in parts, "a bulk add left something else than its first images"
        if hit and hit.kind == "bulk":
            missing = [n for n in hit.ids[:written] if found.get(n) != wanted[n]]
            assert not missing, f"committed images are lost: {missing}"
        report = verify_store(folder)
        assert report.sound, report.problems
        if hit:
            apply_change(folder, hit, lambda _: None)
            assert read_state(folder) == wanted, "the second attempt gave something else"
        say(left)

    left = answer_of(work).split()[-1]
    if hit is None:
        return state, "none", left
    return hit.after(state), hit.kind, left


def main() -> None:
    """Run the kills and print what they met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        sys.exit("This needs fork, which this system does not have.")
    generator = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="phpq-kills-"))
    met: Counter[tuple[str, str]] = Counter()
    start = time.monotonic()
    try:
        gallery = folder / "gallery"
        manifest = new_manifest(FakeModel.codebooks, "made-up")
        answer_of(lambda _: void(GalleryStore.create(gallery, manifest)))
        state: State = {}
        took: dict[str, float] = {}
        for number in range(options.kills):
            aim = KINDS[number % len(KINDS)]
            state, kind, left = kill_once(gallery, state, generator, aim, took)
            met[kind, left] += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - start
    _report(met, seconds, options)


def _report(met: Counter[tuple[str, str]], seconds: float, options: argparse.Namespace) -> None:
    kills = sum(met.values())
    inside = sum(count for (kind, _), count in met.items() if kind != "none")
    if options.json:
        rows = [{"change": k, "left": left, "kills": n} for (k, left), n in sorted(met.items())]
        content = {"made": provenance(options), "kills": kills, "inside_a_change": inside}
        content |= {"lost": 0, "rows": rows, "seconds": round(seconds, 1)}
        print(json.dumps(content, indent=2))
        return
    print(f"{kills} kills, {inside} inside a change, in {seconds:.0f} s: nothing lost.")
    print(f"{'interrupted':<14}{'found':<10}{'kills':>6}")
    for (kind, left), count in sorted(met.items()):
        print(f"{kind:<14}{left:<10}{count:>6}")


if __name__ == "__main__":
    main()
