"""Kill a process that refits or upgrades a gallery, again and again, and look at what is left.

    python benchmarks/kill_refit.py --kills 50
    python benchmarks/kill_refit.py --kills 20 --upgrades

A worker refits a gallery that owns its codebooks, each time with another trust in labels, or, with
--upgrades, gives it another model or another length of codes and takes that back. It is killed
(SIGKILL) at a random moment. Half of the galleries keep embeddings, the others read their images
again. Meanwhile another process searches. Whoever opens the gallery must find all images, with
codes that the codebooks and the model of that version give, the old one or the new one; and the
next change must run to its end. Prints JSON. Embeddings are made up: no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from provenance import provenance

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: threads would only wait

import numpy as np
from kill_gallery import answer_of, in_child, kill_worker
from PIL import Image

from phpq.additive import fit_additive
from phpq.codes import FloatArray, score_codes
from phpq.config import DataConfig
from phpq.gallery import GalleryStore, _embedded, ingest, refit, upgrade, verify_store
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import new_own_manifest
from phpq.gallery.models import model_folder

KINDS, EACH = 6, 20
TRUSTS = (0.2, 0.5, 0.8)
BITS = (16, 24, 32)


class FakeModel:
    """Embeds the colour of the first pixel; two models have other lengths and directions."""

    card = SimpleNamespace(config=SimpleNamespace(data=DataConfig(store_size=2, fit="squash")))

    def __init__(self, name: str = "madeup") -> None:
        self.name, self._dim = name, 12 if name == "madeup" else 20
        self._mix = np.random.default_rng(len(name)).normal(size=(3, self._dim))

    def embedding_dim(self, space: str) -> int:
        """Return the length of an embedding."""
        return self._dim

    def general_fingerprint(self) -> str:
        """Return its name."""
        return self.name

    def save(self, folder: Path) -> None:
        """Write its name."""
        (folder / "name").write_text(self.name)

    def embed_pixels(
        self, pixels: np.ndarray[Any, np.dtype[np.uint8]], *, batch_size: int = 64, space: str
    ) -> FloatArray:
        """Return (n, D) float32."""
        return self.embed(pixels[:, :, 0, 0])

    def embed(self, colours: np.ndarray[Any, Any]) -> FloatArray:
        """Return (n, D) for (n, 3) colours."""
        waves = (colours[:, :, None] / 50 * self._mix).sum(axis=1)
        embeddings: FloatArray = np.cos(waves).astype(np.float32)
        return embeddings


NAMES = ("madeup", "another")


class State(NamedTuple):
    """What a version says of itself."""

    trust: float
    bits: int
    model: str


class Change(NamedTuple):
    """One change: a new trust, new bits or a new model; or the way back, if there is nothing."""

    trust: float | None = None
    bits: int | None = None
    model: str | None = None

    def of(self, now: State, before: State | None) -> tuple[State, State | None]:
        """Return the state, and that which a rollback goes to, after this change."""
        if self.trust is not None:
            return now._replace(trust=self.trust), before
        if self == Change():
            return (before, now) if before else (now, None)
        after = now._replace(bits=self.bits or now.bits, model=self.model or now.model)
        return (now, before) if after == now else (after, now)

    def make(self, folder: Path) -> None:
        """Change a gallery, with many files of embeddings where images are read."""
        _embedded._BLOCK = 16
        store = GalleryStore.open(folder)
        old: Any = FakeModel(store.manifest.model_fingerprint)
        new: Any = FakeModel(self.model) if self.model else None
        if self.trust is not None:
            refit.refit(store, lambda: old, trust=self.trust)
        elif self != Change():
            upgrade.upgrade(store, lambda: old, new, self.bits)
        elif store.manifest.before:
            upgrade.rollback(store)


def draw(generator: random.Random, *, upgrades: bool) -> Change:
    """Return a random change."""
    if not upgrades:
        return Change(trust=generator.choice(TRUSTS))
    bits, model = Change(bits=generator.choice(BITS)), Change(model=generator.choice(NAMES))
    return generator.choice([bits, model, model, Change()])


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
        12, "madeup", bits=16, trust=0.7, keep_embeddings=home.name == "kept"
    )
    store = GalleryStore.create(home / "gallery", manifest)
    ingest.Ingest(store, model).run(home / "images", metadata={})


def time_refit(folder: Path) -> float:
    """Return the seconds that a refit takes in a process that has just begun."""
    start = time.monotonic()
    Change(trust=0.7).make(folder)
    return time.monotonic() - start


def prepare(home: Path) -> float:
    """Make a gallery; returns the seconds of a refit."""
    answer_of(lambda _: make(home))
    return float(answer_of(lambda say: say(str(time_refit(home / "gallery")))))


def state_of(store: GalleryStore) -> State:
    """Return what a version says of itself."""
    manifest = store.manifest
    return State(manifest.trust, manifest.bits, manifest.model_fingerprint)


def check(folder: Path) -> GalleryStore:
    """Open a gallery; codes must be those of codebooks and model of the version, all rows there."""
    store = GalleryStore.open(folder)
    model = FakeModel(store.manifest.model_fingerprint)
    if store.manifest.model:
        home = model_folder(folder, store.manifest)
        assert (home / "name").read_text() == model.name, "the model of another version"
    books, by_number = store.own_codebooks(), model.embed(colours()).astype(np.float16)
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
    answers: dict[str, Any] = {}
    rounds = 0
    while not stop.exists():
        store = check(folder)
        asked = FakeModel(store.manifest.model_fingerprint).embed(colours()[::EACH] + np.uint8(3))
        scores = score_codes(store.own_codebooks().lookup_tables(asked), find_part(store).codes())
        told = answers.setdefault(store.manifest.fit, scores)
        assert np.array_equal(told, scores), "one fit, two answers"
        rounds += 1
    say(f"searched {rounds} {len(answers)}")


def kill_once(
    home: Path, seconds: float, generator: random.Random, *, upgrades: bool
) -> tuple[str, int]:
    """Change, kill, look, and change again; returns how it was left, and the reader's rounds.

    `seconds` are those of a refit.
    """
    folder, stop = home / "gallery", home / "stop"
    stop.unlink(missing_ok=True)
    # More than it will live to make.
    changes = [draw(generator, upgrades=upgrades) for _ in range(1000)]
    compacts = generator.random() < 0.3
    states = answer_of(lambda say: say(json.dumps(now_and_before(folder))))
    now, before = json.loads(states)
    planned = [(State(*now), State(*before) if before else None)]
    for change in changes:
        planned.append(change.of(*planned[-1]))

    def work(say: Callable[[str], None]) -> None:
        for change in changes:
            say("begin")
            change.make(folder)
            say("done")

    reader, answers = in_child(lambda say: search_on(folder, stop, say))
    # A reader works too: twice the time.
    said = kill_worker(work, begun=1, seconds=generator.random() * 2 * seconds)
    done = sum(line.startswith("done") for line in said)
    begun = sum(line.startswith("begin") for line in said)
    last, coming = planned[done][0], planned[done + 1][0]

    def look(say: Callable[[str], None]) -> None:
        found = state_of(check(folder))
        assert found in (last, coming), (found, last, coming)
        report = verify_store(folder)
        assert report.sound, report.problems
        again = changes[done] if upgrades and changes[done] != Change() else Change(trust=0.9)
        again.make(folder)  # goes on where the dead process stopped
        wanted = again.of(found, None)[0]
        assert state_of(check(folder)) == wanted, "a change that was made again has failed"
        left = list((folder / "refit").glob(f"{wanted.model}/*"))
        assert not left, "what a dead process left is still there"
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


def now_and_before(folder: Path) -> tuple[State, State | None]:
    """Return the state of a gallery, and that which a rollback goes to."""
    store = check(folder)
    target = store.manifest.before
    return state_of(store), state_of(GalleryStore.open(folder, version=target)) if target else None


def main() -> None:
    """Run the kills and print what they met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upgrades", action="store_true", help="other models and other lengths")
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
            left, rounds = kill_once(
                home / name, seconds[name], generator, upgrades=options.upgrades
            )
            met[left] += 1
            searches += rounds
    finally:
        shutil.rmtree(home, ignore_errors=True)
    content = {
        "made": provenance(options),
        "kills": sum(met.values()),
        "inside_a_change": met["old"] + met["new"],
        "left": dict(sorted(met.items())),
        "readers_checked": searches,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(content, indent=2) if options.json else content)


if __name__ == "__main__":
    main()
