"""Kill a process that refits a gallery, again and again, and look at what is left.

    python benchmarks/kill_refit.py --kills 50

A worker refits a gallery that owns its codebooks, each time with another trust in labels, and is
killed (SIGKILL) at a random moment. Half of the galleries keep embeddings, the others read their
images again. Meanwhile another process searches. Whoever opens the gallery must find codes and
codebooks of one fit, the old one or the new one, and the next refit must run to its end. Prints a
table, or JSON. Embeddings are made up: no model, no torch.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from provenance import provenance

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: threads would only wait

import numpy as np
from kill_gallery import answer_of, in_child
from PIL import Image

from phpq.additive import fit_additive
from phpq.codes import FloatArray, score_codes
from phpq.config import DataConfig
from phpq.gallery import GalleryStore, ingest, refit, verify_store
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import new_own_manifest

DIM, KINDS, EACH = 12, 6, 20
TRUSTS = (0.2, 0.5, 0.8)
MIX = np.random.default_rng(0).normal(size=(3, DIM))


class FakeModel:
    """Embeds the colour of the first pixel."""

    card = SimpleNamespace(config=SimpleNamespace(data=DataConfig(store_size=2, fit="squash")))

    def embed_pixels(
        self, pixels: np.ndarray[Any, np.dtype[np.uint8]], *, batch_size: int = 64, space: str
    ) -> FloatArray:
        """Return (n, DIM) float32."""
        return embed(pixels[:, :, 0, 0])


def embed(colours: np.ndarray[Any, Any]) -> FloatArray:
    """Return (n, DIM) for (n, 3) colours."""
    embeddings: FloatArray = np.cos((colours[:, :, None] / 50 * MIX).sum(axis=1)).astype(np.float32)
    return embeddings


def colours() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the colours (n, 3) of all pictures, kind after kind."""
    generator = np.random.default_rng(1)
    centres = generator.uniform(30, 220, size=(KINDS, 1, 3))
    drawn = generator.normal(centres, 10, size=(KINDS, EACH, 3))
    return np.clip(drawn, 0, 255).astype(np.uint8).reshape(-1, 3)


def make(home: Path) -> None:
    """Write pictures, and index them; the gallery in "kept" keeps embeddings."""
    model: Any = FakeModel()
    for number, colour in enumerate(colours().tolist()):
        path = home / "images" / f"kind{number // EACH}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), tuple(colour)).save(path)
    manifest = new_own_manifest(
        DIM, "made up", bits=16, trust=0.7, keep_embeddings=home.name == "kept"
    )
    store = GalleryStore.create(home / "gallery", manifest)
    ingest.Ingest(store, model).run(home / "images", metadata={})


def time_refit(folder: Path) -> float:
    """Return the seconds that a refit takes in a process that has just begun."""
    start = time.monotonic()
    fit_again(folder, 0.7)
    return time.monotonic() - start


def prepare(home: Path) -> float:
    """Make a gallery; returns the seconds of a refit."""
    answer_of(lambda _: make(home))
    return float(answer_of(lambda say: say(str(time_refit(home / "gallery")))))


def fit_again(folder: Path, trust: float) -> None:
    """Refit, with many files of embeddings where they are not kept."""
    model: Any = FakeModel()
    refit._STRETCH = 16
    refit.refit(GalleryStore.open(folder), lambda: model, trust=trust)


def check(folder: Path) -> GalleryStore:
    """Open a gallery; codes and codebooks must be of one fit, and all rows there."""
    store = GalleryStore.open(folder)
    books, by_number = store.own_codebooks(), embed(colours()).astype(np.float16)
    seen = 0
    for table in batches(store):
        numbers = [int(Path(name).stem) for name in table["id"].to_pylist()]
        vectors = by_number[numbers].astype(np.float32)
        codes = books.encode(vectors, table["label"].to_pylist()).tolist()
        assert table["code"].to_pylist() == codes, "codes of one fit, codebooks of another"
        seen += len(numbers)
    assert seen == KINDS * EACH, "rows are lost"
    assert abs(books.trust - store.manifest.trust) < 1e-9, "codebooks of another version"
    find_part(store).codes()  # checks every row
    return store


def search_on(folder: Path, stop: Path, say: Callable[[str], None]) -> None:
    """Search until a file is there; answers of one fit are always the same."""
    asked = embed(colours()[::EACH] + np.uint8(3))
    answers: dict[str, Any] = {}
    rounds = 0
    while not stop.exists():
        store = check(folder)
        scores = score_codes(store.own_codebooks().lookup_tables(asked), find_part(store).codes())
        told = answers.setdefault(store.manifest.fit, scores)
        assert np.array_equal(told, scores), "one fit, two answers"
        rounds += 1
    say(f"searched {rounds} {len(answers)}")


def kill_once(home: Path, seconds: float, generator: random.Random) -> tuple[str, int]:
    """Refit, kill, look, and refit to the end; returns how it was left, and the reader's rounds.

    `seconds` are those of a refit.
    """
    folder, stop = home / "gallery", home / "stop"
    stop.unlink(missing_ok=True)
    trusts = [generator.choice(TRUSTS) for _ in range(20)]  # more than it will live to make
    compacts = generator.random() < 0.3
    before = float(answer_of(lambda say: say(str(check(folder).manifest.trust))))

    def work(say: Callable[[str], None]) -> None:
        for trust in trusts:
            say("begin")
            fit_again(folder, trust)
            say("done")

    reader, answers = in_child(lambda say: search_on(folder, stop, say))
    child, pipe = in_child(work)
    with os.fdopen(pipe) as stream:
        said = [stream.readline()]
        time.sleep(generator.random() * 2 * seconds)  # a reader works too
        os.kill(child, signal.SIGKILL)
        said += stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    if any(line.startswith("failed") for line in said) or not os.WIFSIGNALED(status):
        raise SystemExit(f"The worker ended by itself: {said[-1:]}")
    done = sum(line.startswith("done") for line in said)
    begun = sum(line.startswith("begin") for line in said)
    last = ([before, *trusts])[done]

    def look(say: Callable[[str], None]) -> None:
        found = check(folder).manifest.trust
        assert found in (last, trusts[done]), (found, last, trusts[done])
        report = verify_store(folder)
        assert report.sound, report.problems
        fit_again(folder, 0.9)
        assert check(folder).manifest.trust == 0.9
        assert not (folder / "refit").exists(), "what a dead refit left is still there"
        if compacts:
            GalleryStore.open(folder).compact()
            check(folder)
        say("new" if found != last else "old" if begun > done else "between")

    left = answer_of(look).split()[-1] if begun else ""
    stop.touch()
    with os.fdopen(answers) as stream:
        told = stream.read()
    _, status = os.waitpid(reader, 0)
    gone = "cannot be read" in told or "is damaged" in told  # compacted while it was read
    if status and not gone:
        raise SystemExit(f"A reader met something else: {told}")
    return left, 0 if status else int(told.split()[1])


def main() -> None:
    """Run the kills and print what they met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        sys.exit("This needs fork, which this system does not have.")
    generator = random.Random(options.seed)
    home = Path(tempfile.mkdtemp(prefix="phpq-refits-"))
    met: Counter[str] = Counter()
    searches, start = 0, time.monotonic()
    try:
        # Compiled here, so that no child spends its life on that.
        fit_additive(np.eye(300, 4, dtype=np.float32), [None] * 300, num_codebooks=2)
        seconds = {name: prepare(home / name) for name in ("kept", "images")}
        for number in range(options.kills):
            name = ("kept", "images")[number % 2]
            left, rounds = kill_once(home / name, seconds[name], generator)
            met[left] += 1
            searches += rounds
    finally:
        shutil.rmtree(home, ignore_errors=True)
    content = {
        "made": provenance(options),
        "kills": sum(met.values()),
        "inside_a_refit": met["old"] + met["new"],
        "left": dict(sorted(met.items())),
        "readers_checked": searches,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(content, indent=2) if options.json else content)


if __name__ == "__main__":
    main()
