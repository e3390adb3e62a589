"""Does it help to point? Several photos, a box, a suggested box, more and less like this: a table.

    python benchmarks/pointing.py --run RUN --half HALF --json docs/results/pointing.json

RUN learned all classes: the gallery holds its training images, in 8 bytes or what the run has, and
test images ask. For boxes they are pasted, at a third to a half of its side, into a square collage
of corners of training photos: the whole scene asks, the photo in it, or the part that
`phpq.explain.suggest_box` suggests. What a place must have to belong to a suggested box, and how
far a query goes from what it is not like, are chosen on scenes of training images, whose own rows
are left out. HALF learned half of the classes, as for knows.py: what verdicts on several photos
name, and how often that is wrong.

`--cache FOLDER` keeps embeddings and heat maps; those of HALF are what knows.py keeps in `half`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import knows
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from provenance import provenance

import phpq
from phpq.codes import FloatArray, IntArray, score_codes
from phpq.data import LabelledImages, open_dataset
from phpq.data.boxes import Box, cut_out
from phpq.explain import heat_map, hottest_box
from phpq.explain.suggest import HOTTER
from phpq.gallery.queries import AWAY, QueryMean
from phpq.gallery.verdicts import predict

COUNTS = (1, 3, 5)  # photos of one query
OF_A_CLASS = 10  # test photos that these are drawn from
SIDE, TILES = 512, 4  # of a scene: pixels, and corners along its side
CORNER = 0.3  # of the shorter side of a photo
SMALLEST, LARGEST = 1 / 3, 1 / 2  # of the side of a scene: the longer side of the photo in it
RULES = (1.25, 1.5, 1.75, 2.0)  # tried for HOTTER
STEPS = (0.25, 0.5, 1.0)  # tried for AWAY
SHOWN = 10  # hits among which a person looks for a right one


@dataclass(frozen=True, eq=False)
class Index:
    """The codes of a gallery and their classes."""

    books: Any
    norm: Any
    codes: NDArray[np.uint8]
    labels: IntArray

    def hits(self, queries: FloatArray, left_out: Sequence[Sequence[int]] = ()) -> IntArray:
        """Return the rows (Q, SHOWN) that are found first; of each query some are left out."""
        found = []
        for start in range(0, len(queries), 256):
            tables = self.books.lookup_tables(queries[start : start + 256], norm=self.norm)
            scores = score_codes(tables, self.codes)
            for row, rows in enumerate(left_out[start : start + 256]):
                scores[row, list(rows)] = -np.inf
            found.append(np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN])
        return np.concatenate(found)

    def recall(
        self, queries: FloatArray, labels: IntArray, left_out: Sequence[Sequence[int]] = ()
    ) -> float:
        """Return how often the first hit is of the query's class."""
        return float((self.labels[self.hits(queries, left_out)[:, 0]] == labels).mean())


@dataclass(frozen=True, eq=False)
class Scenes:
    """Photos pasted into clutter, embedded whole and by the box that they fill."""

    labels: IntArray
    pictures: list[Image.Image]
    whole: FloatArray
    boxed: FloatArray
    heat: FloatArray  # (N, h, w)


def kept(cache: Path | None, name: str, make: Callable[[], FloatArray]) -> FloatArray:
    """Return what was made before under this name, or make it now."""
    file = None if cache is None else cache / f"{name}.npy"
    if file is not None and file.is_file():
        found: FloatArray = np.load(file)
        return found
    made = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, made)
    print(f"{name}: {len(made)}", flush=True)
    return made


def corner(photo: Image.Image, random: np.random.Generator) -> Image.Image:
    """Return one of the four corners of a photo, where there is background most of the time."""
    side = round(CORNER * min(photo.size))
    left, top = (int(random.integers(2)) * (length - side) for length in photo.size)
    return photo.crop((left, top, left + side, top + side))


def scene(
    photo: Image.Image, others: LabelledImages, random: np.random.Generator
) -> tuple[Image.Image, Box]:
    """Paste a photo into a collage of corners of others; returns where, too."""
    canvas, tile = Image.new("RGB", (SIDE, SIDE)), SIDE // TILES
    for place, row in enumerate(random.integers(len(others), size=TILES * TILES).tolist()):
        piece = corner(others.read(row), random).resize((tile, tile), Image.Resampling.BICUBIC)
        canvas.paste(piece, (place % TILES * tile, place // TILES * tile))
    scale = random.uniform(SMALLEST, LARGEST) * SIDE / max(photo.size)
    width, height = (max(1, round(length * scale)) for length in photo.size)
    left, top = int(random.integers(SIDE - width + 1)), int(random.integers(SIDE - height + 1))
    small = photo.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    canvas.paste(small, (left, top))
    return canvas, (left, top, left + width, top + height)


class Trial:
    """A model, its gallery, and photos that ask."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.cache, self.seed = options.cache, options.seed
        self.model = phpq.load(options.run)
        self.data = open_dataset(options.data)
        train = self.data.train
        rows = kept(self.cache, "gallery", lambda: self.model.embed(train))
        books, norm = self.model.codebooks, self.model.query_norm
        self.index = Index(books, norm, books.encode(rows), train.labels)

    def drawn(self, images: LabelledImages, count: int) -> IntArray:
        """Return `count` images of every class, or all that it has."""
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(images))
        labels = images.labels[order]
        places = np.array([np.sum(labels[:n] == labels[n]) for n in range(len(labels))])
        return np.sort(order[places < count])

    def photos(self) -> tuple[FloatArray, IntArray]:
        """Return embeddings and classes of the test photos that ask."""
        images = self.data.test.subset(self.drawn(self.data.test, OF_A_CLASS))
        return kept(self.cache, "asking", lambda: self.model.embed(images)), images.labels

    def several(self) -> list[dict[str, Any]]:
        """Measure queries of 1, 3 and 5 photos of a species."""
        rows, labels = self.photos()
        mean = QueryMean(self.index.books, self.index.norm)
        random = np.random.default_rng(self.seed)
        result = []
        for count in COUNTS:
            queries = []
            for row, label in enumerate(labels):
                others = np.flatnonzero((labels == label) & (np.arange(len(labels)) != row))
                group = [row, *random.permutation(others)[: count - 1].tolist()]
                queries.append(mean.of([rows[n] for n in group]))
            recall = self.index.recall(np.stack(queries), labels)
            result.append({"photos": count, "queries": len(queries), "recall": recall})
        return result

    def scenes(self, name: str, images: LabelledImages) -> Scenes:
        """Paste photos into clutter, and embed what asks."""
        made = [
            scene(images.read(row), self.data.train, np.random.default_rng([self.seed, row]))
            for row in range(len(images))
        ]
        pictures, boxes = [one for one, _ in made], [box for _, box in made]
        return Scenes(
            images.labels,
            pictures,
            kept(self.cache, f"{name}-whole", lambda: self.model.embed(pictures)),
            kept(self.cache, f"{name}-boxed", lambda: self.cut(pictures, boxes)),
            kept(self.cache, f"{name}-heat", lambda: self.heat(pictures)),
        )

    def heat(self, pictures: list[Image.Image]) -> FloatArray:
        """Return heat maps of 64 x 64 places: a box is looked for on fewer."""
        maps = [heat_map(self.model, one) for one in pictures]
        step = SIDE // 64
        return np.stack([one.reshape(64, step, 64, step).mean(axis=(1, 3)) for one in maps])

    def cut(self, pictures: list[Image.Image], boxes: Sequence[Box]) -> FloatArray:
        """Embed the parts of pictures that boxes are on."""
        pairs = zip(pictures, boxes, strict=True)
        return self.model.embed([cut_out(picture, box) for picture, box in pairs])

    def suggested(self, name: str, scenes: Scenes, hotter: float) -> FloatArray:
        """Embed the parts of scenes that a rule suggests."""
        boxes = [
            tuple(SIDE * edge for edge in hottest_box(heat, hotter=hotter)) for heat in scenes.heat
        ]
        return kept(
            self.cache,
            f"{name}-{hotter:g}",
            lambda: self.cut(scenes.pictures, boxes),  # type: ignore[arg-type]
        )

    def pointed(
        self, queries: FloatArray, labels: IntArray, own: list[list[int]], away: float
    ) -> dict[str, Any]:
        """Measure what marking hits gives where the first hit is wrong and a right one is shown."""
        mean = QueryMean(self.index.books, self.index.norm, away)
        rows = self.index.books.decode(self.index.codes)  # a gallery without embeddings
        hits = self.index.hits(queries, own)
        right = self.index.labels[hits] == labels[:, None]
        chosen = np.flatnonzero(~right[:, 0] & right.any(axis=1))
        made: dict[str, list[FloatArray]] = {"more": [], "less": [], "both": []}
        left = []
        for row in chosen.tolist():
            good, bad = int(hits[row, right[row].argmax()]), int(hits[row, 0])
            left.append([*(own[row] if own else ()), good, bad])
            made["more"].append(mean.of([queries[row], rows[good]]))
            made["less"].append(mean.away([queries[row]], [rows[bad]]))
            made["both"].append(mean.away([queries[row], rows[good]], [rows[bad]]))
        asked = {"neither": [queries[row] for row in chosen], **made}
        found = {
            name: self.index.recall(np.stack(each), labels[chosen], left)
            for name, each in asked.items()
        }
        return {"away": away, "queries": len(chosen), **found}


def verdicts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure what several photos are named, at most 5 % wrong; known and unknown weigh alike."""
    model, data = phpq.load(options.half), open_dataset(options.data)
    learned = set(model.class_names)
    cache = None if options.cache is None else options.cache / "half"

    def part(images: LabelledImages, name: str, *, known: bool) -> knows.Photos:
        numbers = [n for n, each in enumerate(images.class_names) if (each in learned) == known]
        rows = images.subset(np.flatnonzero(np.isin(images.labels, numbers)))
        return knows.embedded(model, replace(rows, name=name), cache)

    gallery, known = part(data.train, "gallery", known=True), part(data.test, "known", known=True)
    trial = knows.OwnTrial(gallery, known, part(data.test, "unknown", known=False), 64)
    names = np.array(trial.names)
    result = []
    for by in ("gallery", "photos"):
        books = trial.calibrated(by, {})
        mean, random = QueryMean(books, "unit"), np.random.default_rng(options.seed)
        for count in COUNTS:
            groups = []
            for row, name in enumerate(names):
                others = np.flatnonzero((names == name) & (np.arange(len(names)) != row))
                groups.append([row, *random.permutation(others)[: count - 1].tolist()])
            rows = np.stack([mean.of([trial.rows[n] for n in group]) for group in groups])
            told = predict(books, rows, np.arange(len(books.class_names)), knows.SHOWN)
            sure = np.array([(one.known or 0) * one.kinds[0][1] for one in told if one.kinds])
            right = np.array([one.kinds[0][0] for one in told if one.kinds]) == names
            named = knows.levels_of(told) == 0
            weights = trial.weights
            wrong = weights[named & ~right].sum() / max(weights[named].sum(), 1e-12)
            result.append(
                {
                    "fitted_to": by,
                    "photos": count,
                    "auroc": knows.auroc(trial.known, np.array([one.known for one in told])),
                    "named": float(named[trial.known].mean()),
                    "wrong": float(wrong),
                    "calibration_error": knows.calibration_error(sure, right, weights),
                }
            )
    return result


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", required=True, help="that learned all classes")
    parser.add_argument("--half", help="trained with --hold-out-classes 0.5; verdicts are of it")
    parser.add_argument("--data", default="cub200")
    parser.add_argument("--scenes", type=int, default=5, help="test photos of a class in clutter")
    parser.add_argument("--chosen-on", type=int, default=1, help="training photos of a class")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trial = Trial(options)
    several = trial.several()
    held = trial.drawn(trial.data.train, options.chosen_on)
    own = [[int(row)] for row in held]
    scenes = trial.scenes("train", trial.data.train.subset(held))
    rules = {hotter: trial.suggested("train", scenes, hotter) for hotter in RULES}
    choice = {
        "queries": len(held),
        "whole": trial.index.recall(scenes.whole, scenes.labels, own),
        "boxed": trial.index.recall(scenes.boxed, scenes.labels, own),
        "rules": [
            {"hotter": hotter, "suggested": trial.index.recall(rows, scenes.labels, own)}
            for hotter, rows in rules.items()
        ],
        "away": [trial.pointed(scenes.boxed, scenes.labels, own, away) for away in STEPS],
    }
    test = trial.scenes(
        "test", trial.data.test.subset(trial.drawn(trial.data.test, options.scenes))
    )
    clutter = {
        "queries": len(test.labels),
        "hotter": HOTTER,
        "whole": trial.index.recall(test.whole, test.labels),
        "boxed": trial.index.recall(test.boxed, test.labels),
        "suggested": trial.index.recall(trial.suggested("test", test, HOTTER), test.labels),
    }
    content = {
        **provenance(options),
        "several": several,
        "chosen_on_training_images": choice,
        "clutter": clutter,
        "marked": trial.pointed(*trial.photos(), [], AWAY),
        "verdicts": verdicts(options) if options.half else [],
    }
    print(json.dumps({name: content[name] for name in list(content)[-5:]}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
