"""Does an audit find what was planted? A data set with flipped labels and copies in, a table out.

    python benchmarks/audit.py --data cub200 --weights resnet18.safetensors --json audit.json

5 % of the labels are flipped before anything is learned: at random, and, in a second gallery, to
the nearest other class. 300 copies are planted: scaled, compressed, cropped by a tenth, or all
three. The trunk is frozen; its features are whitened by the flipped labels, as `phpq train` does,
and kept in a gallery that owns its codebooks. The audit sees that gallery and nothing else.

`--sheet FILE.png` shows, for a look by eye, the pairs that were called copies and not planted, and
the 100 pairs that are most alike of those that were not; `--seed` flips and plants otherwise: rules
were chosen with other seeds on classes 1 to 100 (`--classes 100`).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from provenance import provenance
from safetensors.numpy import save_file

from phpq.additive.codebooks import unit_rows
from phpq.audit import Audit, audit_gallery
from phpq.audit.copies import near_pairs, nearest
from phpq.codes import Codebooks, FloatArray, IntArray
from phpq.data import Dataset, open_dataset
from phpq.data.batches import Views
from phpq.data.decode import decode_square
from phpq.gallery import GalleryStore, Record
from phpq.gallery.folder import new_own_manifest
from phpq.gallery.owned import code_records
from phpq.model.general import build_trunk, describe_pyramid, whiten
from phpq.recipes import resolve_config

COPIES = 300
FLIPPED = 0.05
KINDS = ("scaled", "compressed", "cropped", "all three")
ALIKE = 100  # pairs that are looked at
Files = list[Path]


class Frozen:
    """Features of a pretrained trunk, of an image and its mirror image."""

    def __init__(self, backbone: str, weights: str) -> None:
        config = resolve_config(weights=weights, settings=[f"model.backbone={backbone}"])
        self._data, self._views = config.data, Views(config.data)
        self._trunk = build_trunk(config.model, load_weights=True).eval().requires_grad_(False)
        self._trunk.to(memory_format=torch.channels_last)

    def __call__(self, files: Files) -> NDArray[np.float16]:
        """Return (n, 2, F)."""
        made = []
        for start in range(0, len(files), 16):
            squares = [decode_square(file, self._data) for file in files[start : start + 16]]
            pixels = self._views.encode(torch.from_numpy(np.stack(squares)))
            both = [self._describe(each) for each in (pixels, pixels.flip(-1))]
            made.append(torch.stack(both, 1).half().numpy())
        return np.concatenate(made)

    @torch.no_grad()
    def _describe(self, pixels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            pyramid = self._trunk(pixels.contiguous(memory_format=torch.channels_last))
        return describe_pyramid([level.float() for level in pyramid])


def cached(path: Path | None, frozen: Frozen, files: Files) -> FloatArray:
    """Return features, computed once."""
    if path is not None and path.is_file():
        kept = np.load(path)
        if len(kept) == len(files):
            found: FloatArray = kept.astype(np.float32)
            return found
    made = frozen(files)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, made)
    return made.astype(np.float32)


def images_of(data: Dataset) -> tuple[Files, IntArray]:
    """Return the files and classes of both splits."""
    paths = (split.path(row) for split in (data.train, data.test) for row in range(len(split)))
    files = [path for path in paths if path is not None]
    return files, np.concatenate([data.train.labels, data.test.labels]).astype(np.int64)


def changed(image: Image.Image, kind: str, generator: np.random.Generator) -> bytes:
    """Return a copy of an image as a file: JPEG."""
    quality, (width, height) = 92, image.size
    if kind in ("cropped", "all three"):
        wide, high = round(0.9 * width), round(0.9 * height)
        left, top = generator.integers(width - wide + 1), generator.integers(height - high + 1)
        image = image.crop((int(left), int(top), int(left) + wide, int(top) + high))
    if kind in ("scaled", "all three"):
        factor = generator.uniform(0.4, 0.8)
        size = (max(1, round(factor * image.width)), max(1, round(factor * image.height)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    if kind in ("compressed", "all three"):
        quality = int(generator.integers(25, 60))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def plant(files: Files, folder: Path, seed: int) -> tuple[IntArray, Files]:
    """Write copies; returns the places of their originals, and their files."""
    generator = np.random.default_rng([seed, 1])
    chosen = generator.permutation(len(files))[:COPIES]
    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, place in enumerate(chosen.tolist()):
        with Image.open(files[place]) as image:
            content = changed(image.convert("RGB"), KINDS[number % len(KINDS)], generator)
        made.append(folder / f"{number:03d}.jpg")
        made[-1].write_bytes(content)
    return chosen, made


def flip(classes: IntArray, others: FloatArray | None, count: int, seed: int) -> IntArray:
    """Flip labels at random, or each to the class that `others` (C, C) says is nearest."""
    generator = np.random.default_rng([seed, 2])
    places = generator.permutation(len(classes))[: round(FLIPPED * len(classes))]
    given = classes.copy()
    if others is None:
        given[places] = (classes[places] + generator.integers(1, count, len(places))) % count
    else:
        given[places] = others[classes[places]].argmax(axis=1)
    return given


def class_nearness(features: FloatArray, classes: IntArray, count: int) -> FloatArray:
    """Return the cosines (C, C) of the mean features of classes, -2 for a class with itself."""
    centred = features.mean(axis=1) - features.mean(axis=(0, 1))
    means = unit_rows(np.stack([centred[classes == each].mean(axis=0) for each in range(count)]))
    near: FloatArray = means @ means.T
    np.fill_diagonal(near, -2)
    return near


def made_gallery(folder: Path, features: FloatArray, files: Files, given: IntArray) -> GalleryStore:
    """Make a gallery of whitened features, as a model that learned from these labels would."""
    mean, projection = whiten(torch.from_numpy(features[:, 0].copy()), torch.from_numpy(given))
    turned = [unit_rows((features[:, n] - mean.numpy()) @ projection.numpy()) for n in (0, 1)]
    embeddings = unit_rows(turned[0] + turned[1]).astype(np.float16)
    manifest = new_own_manifest(embeddings.shape[1], "frozen")

    def fill(home: Path) -> None:
        (home / "model").mkdir()
        whole = np.ascontiguousarray(projection.numpy())
        save_file({"projection": whole}, home / "model" / "general.safetensors")

    store = GalleryStore.create(folder, manifest, fill=fill)
    bare = np.empty(0, np.uint8)
    records = [
        Record(f"{n:05d}", str(file), f"{label:03d}", hashlib.sha256(file.read_bytes()).digest(),
               bare, {}, embeddings[n])
        for n, (file, label) in enumerate(zip(files, given.tolist(), strict=True))
    ]  # fmt: skip
    store.put(records, finish=lambda each: code_records(store, each, store))
    return store


class Unused:
    """In place of a model: nothing of it is asked where embeddings are kept."""

    codebooks = Codebooks(np.array([[[1.0], [-1.0]]], np.float32))
    class_names = ()


def judged(found: Audit, given: IntArray, truth: IntArray) -> dict[str, float]:
    """Measure the labels that were named."""
    named = np.array([int(each.id) for each in found.wrong_labels], np.int64)
    wrong = given != truth
    hits = int(wrong[named].sum())
    right = [each for each in found.wrong_labels if wrong[int(each.id)]]
    return {
        "flipped": int(wrong.sum()),
        "named": len(named),
        "precision": hits / max(len(named), 1),
        "recall": hits / int(wrong.sum()),
        "estimated_share": float(found.wrong_share or 0),
        "suggestion_right": sum(int(each.suggested) == truth[int(each.id)] for each in right)
        / max(len(right), 1),
    }


def copied(found: Audit, originals: IntArray, first: int) -> dict[str, Any]:
    """Measure the copies that were found; what else was called a copy is listed."""
    pairs = {
        (min(one, other), max(one, other))
        for group in found.copies
        for one in map(int, group.ids)
        for other in map(int, group.ids)
        if one != other
    }
    planted = {(int(place), first + number) for number, place in enumerate(originals)}
    rows = {
        kind: sum((int(originals[n]), first + n) in pairs for n in range(at, COPIES, len(KINDS)))
        for at, kind in enumerate(KINDS)
    }
    of_copies = {place: first + number for number, place in enumerate(originals.tolist())}
    others = sorted((one, other) for one, other in pairs - planted if one < first and other < first)
    strange = sorted(
        (one, other)
        for one, other in pairs - planted
        if other >= first and not {one, other} & set(of_copies)
    )
    return {
        "planted": COPIES,
        "found": len(planted & pairs),
        "by_kind": rows,
        "called_copies_and_not_planted": [list(pair) for pair in others],
        "of_a_copy_and_another": [list(pair) for pair in strange],
    }


def alike_pairs(
    store: GalleryStore, called: set[tuple[int, int]], first: int
) -> list[tuple[int, int]]:
    """Return the pairs of images that are most alike by embedding, and were not called copies."""
    column = store.dataset.to_table(columns=["row", "embedding"]).sort_by("row")["embedding"]
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    rows = flat.reshape(len(store), -1).astype(np.float32)[:first]
    rows = unit_rows(rows - rows.mean(axis=0))
    pairs = [pair for pair in near_pairs(nearest(rows)[0]) if pair not in called]
    order = np.argsort([-float(rows[one] @ rows[other]) for one, other in pairs], kind="stable")
    return [pairs[place] for place in order[:ALIKE].tolist()]


def draw_sheet(path: Path, files: Files, pairs: list[tuple[int, int]]) -> None:
    """Draw pairs one above the other, ten to a row."""
    sheet = Image.new("RGB", (10 * 200, -(-len(pairs) // 10) * 300), "white")
    for number, pair in enumerate(pairs):
        for line, place in enumerate(pair):
            with Image.open(files[place]) as image:
                small = image.convert("RGB")
                small.thumbnail((196, 142))
                sheet.paste(small, (number % 10 * 200, number // 10 * 300 + line * 146))
    sheet.save(path)


def main() -> None:
    """Plant, look, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", default="cub200")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--classes", type=int, default=0, help="only the first; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flips", choices=("both", "random", "nearest class"), default="both")
    parser.add_argument("--cache", type=Path, help="folder that features are kept in")
    parser.add_argument("--sheet", type=Path, help="a picture of pairs, to be looked at")
    parser.add_argument("--json", type=Path, help="a file of this name is added to")
    options = parser.parse_args()
    files, truth = images_of(open_dataset(options.data))
    frozen, cache, name = Frozen(options.backbone, options.weights), options.cache, options.backbone
    features = cached(cache and cache / f"{name}-images.npy", frozen, files)
    if options.classes:
        kept = np.flatnonzero(truth < options.classes)
        files, truth, features = [files[n] for n in kept], truth[kept], features[kept]
    first, count = len(files), int(truth.max()) + 1
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        originals, made = plant(files, home / "copies", options.seed)
        at = cache and cache / f"{name}-copies-{options.seed}-{options.classes}.npy"
        both = np.concatenate([features, cached(at, frozen, made)])
        files, whole = files + made, np.concatenate([truth, truth[originals]])
        near = class_nearness(features, truth, count)
        rows: list[dict[str, Any]] = []
        for way, others in (("random", None), ("nearest class", near)):
            if options.flips not in ("both", way):
                continue
            given = flip(truth, others, count, options.seed)
            given = np.concatenate([given, given[originals]])
            store = made_gallery(home / way.replace(" ", "-"), both, files, given)
            start = time.perf_counter()
            found = audit_gallery(store, lambda: Unused())  # type: ignore[arg-type, return-value]
            seconds = time.perf_counter() - start
            row = {
                "backbone": name,
                "flips": way,
                **judged(found, given, whole),
                "seconds": seconds,
            }
            row["copies"] = copied(found, originals, first)
            rows.append(row)
            print(json.dumps(row), flush=True)
        if options.sheet:
            called = [tuple(pair) for pair in rows[0]["copies"]["called_copies_and_not_planted"]]
            alike = alike_pairs(store, set(called), first)
            draw_sheet(options.sheet, files, [*called, *alike])
    content = {**provenance(options), "images": first, "classes": count, "rows": rows}
    if options.json:
        before = json.loads(options.json.read_text("utf-8")) if options.json.is_file() else {}
        new = {(row["backbone"], row["flips"]): row for row in [*before.get("rows", []), *rows]}
        content["rows"] = [
            new[each] for each in sorted(new, key=lambda one: (one[0], one[1][::-1]))
        ]
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
