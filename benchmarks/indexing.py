"""How fast a folder of JPEGs is indexed, beside bare decoding and bare inference in the same run.

    python benchmarks/indexing.py                 # drawn birds, resnet18 and a small network
    python benchmarks/indexing.py --folder photos/ --backbone resnet50 --json

Decoding: read, decode and resize in threads, nothing else. Inference: the model on decoded squares,
nothing else. Indexing: `Gallery.add` into a new gallery, with hashing and commits. The three take
turns, and the best time of each counts. The ratio to the slower of the two should stay below 1.3.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from provenance import provenance

from phpq.config import RunConfig
from phpq.data import decode_square, plumage
from phpq.data.decode import IMAGE_EXTENSIONS
from phpq.gallery import Gallery
from phpq.model import TorchModel, build_method, resolve_device
from phpq.model.checkpoint import ModelCard

TARGET = 1.3
_KEPT = 256  # decoded squares that inference is fed with, over and over


@dataclass(frozen=True)
class Speed:
    """Images per second of one backbone."""

    backbone: str
    images: int
    decode: float
    inference: float
    indexing: float

    @property
    def ratio(self) -> float:
        """Time of indexing over the time of the slower of the two parts."""
        return min(self.decode, self.inference) / self.indexing

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "backbone": self.backbone,
            "images": self.images,
            "decode_per_s": round(self.decode, 1),
            "inference_per_s": round(self.inference, 1),
            "indexing_per_s": round(self.indexing, 1),
            "ratio": round(self.ratio, 3),
            "within_target": self.ratio <= TARGET,
        }


def draw_photos(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Write drawn birds as JPEGs of the size of photographs."""
    birds = plumage(20, -(-count // 20), test_per_species=1, size=256).train
    files = []
    for row in range(count):
        image = birds.read(row % len(birds)).resize(size, Image.Resampling.BICUBIC)
        # Camera noise: a drawing alone is too easy to decode.
        noise = np.random.default_rng(row).normal(0, 6, (size[1], size[0], 3))
        pixels = (np.asarray(image) + noise).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{row:05}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


def build_model(backbone: str, device: str) -> TorchModel:
    """Return an untrained model with the default settings: speed does not depend on weights."""
    config = RunConfig()
    config = replace(config, model=replace(config.model, backbone=backbone, weights="none"))
    torch.manual_seed(0)
    network = build_method(config, 10)
    card = ModelCard(config=config, class_names=tuple("abcdefghij"), dataset="plumage")
    return TorchModel(network, card, device=resolve_device(device), epochs=0)


def measure(model: TorchModel, files: Sequence[Path], *, batch_size: int, repeats: int) -> Speed:
    """Time the three, in turns."""
    config = model.card.config.data
    squares = np.stack([decode_square(file, config) for file in files[:_KEPT]])

    def decode() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(lambda file: decode_square(file, config), files):
                pass

    def infer() -> None:
        for start in range(0, len(files), batch_size):
            count = min(batch_size, len(files) - start)
            rows = np.arange(start, start + count) % len(squares)
            model.embed_pixels(squares[rows], batch_size=batch_size)

    def index() -> None:
        with tempfile.TemporaryDirectory() as folder:
            gallery = Gallery.create(Path(folder) / "g", model)
            report = gallery.add(files[0].parent, batch_size=batch_size)
            assert report.added == len(files), report

    ways: list[Callable[[], None]] = [decode, infer, index]
    best = [float("inf")] * len(ways)
    model.embed_pixels(squares[:batch_size], batch_size=batch_size)  # warm
    for _ in range(repeats):
        for place, way in enumerate(ways):
            start = time.perf_counter()
            way()
            best[place] = min(best[place], time.perf_counter() - start)
    speeds = [len(files) / seconds for seconds in best]
    return Speed(model.card.config.model.backbone, len(files), *speeds)


def main() -> None:
    """Measure every backbone and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="JPEGs; by default drawn ones")
    parser.add_argument("--images", type=int, nargs="+", default=[400], help="how many to draw")
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), help="of drawn images")
    parser.add_argument("--backbone", nargs="+", default=["resnet18", "test_resnet"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    for count in options.images if options.folder is None else [0]:
        with tempfile.TemporaryDirectory() as folder:
            if options.folder is None:
                files = draw_photos(Path(folder), count, tuple(options.size))
            else:
                files = sorted(f for f in options.folder.iterdir() if f.suffix in IMAGE_EXTENSIONS)
            if not files:
                sys.exit(f"There are no images in {options.folder}.")
            results += [
                measure(
                    build_model(backbone, options.device),
                    files,
                    batch_size=options.batch_size,
                    repeats=options.repeats,
                )
                for backbone in options.backbone
            ]
    if options.json:
        rows = [row.to_dict() for row in results]
        print(json.dumps({"made": provenance(options), "results": rows}, indent=2))
        return
    print("images per second; ratio: time of indexing over the slower of the two parts")
    print(f"{'backbone':<16}{'decode':>10}{'inference':>11}{'indexing':>10}{'ratio':>8}")
    for row in results:
        numbers = f"{row.decode:>10.1f}{row.inference:>11.1f}{row.indexing:>10.1f}"
        print(f"{row.backbone:<16}{numbers}{row.ratio:>8.2f}")


if __name__ == "__main__":
    main()
