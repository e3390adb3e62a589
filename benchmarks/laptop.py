"""What phpq takes on a small machine without a GPU: one table per section, limits beside it.

    python benchmarks/laptop.py install                          # needs uv and its packages
    python benchmarks/laptop.py codes --run RUN [--images 2000]  # torch, ONNX and int8, in one run
    python benchmarks/laptop.py start serve [--gallery GALLERY]  # a search from nothing; a server
    python benchmarks/laptop.py train --source cub200:DIR --weights FILE [--all RUN]
    python benchmarks/laptop.py first --source FOLDER --weights FILE     # README, as a newcomer
    python benchmarks/laptop.py codes install --run RUN --json docs/results/laptop.json

install: `pip install phpq` into an empty environment, megabytes on disk.
codes: the test images of a run's data set as queries to its training images. Every image is decoded
once and embedded by each runtime in turn, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from laptop_start import measure_first, measure_served, measure_start
from laptop_train import add_options, measure_train
from numpy.typing import NDArray
from provenance import provenance

from phpq.api import as_dataset, open_origin
from phpq.config import to_dict
from phpq.data import LabelledImages
from phpq.evaluation.embedding import Embed, embed_readable
from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes
from phpq.model import load
from phpq.model.export import export_onnx
from phpq.model.int8 import export_int8
from phpq.model.interface import ENCODER, INT8

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]
INSTALL_MB = 850
SAME_CODES = 99.9  # percent of the images
ONNX_LOSS, INT8_LOSS = 0.05, 1.0  # points of MAP
ONNX_SPEED, INT8_SPEED = 1.2, 2.0  # times torch


class Timed:
    """Embeds, and counts images and seconds."""

    def __init__(self, embed: Embed) -> None:
        self._embed, self.images, self.seconds = embed, 0, 0.0

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embed decoded squares."""
        start = time.perf_counter()
        embeddings = self._embed(pixels)
        self.seconds += time.perf_counter() - start
        self.images += len(pixels)
        return embeddings


def some_of(images: LabelledImages, count: int | None) -> LabelledImages:
    """Return so many images, spread evenly."""
    if count is None or count >= len(images):
        return images
    return images.subset(np.linspace(0, len(images) - 1, count).round().astype(int))


def measure_codes(options: argparse.Namespace) -> list[Row]:
    """Compare the runtimes of one model: speed, size, equal codes, MAP."""
    if options.run is None:
        raise SystemExit("codes: say which model with --run RUN")
    model = load(options.run, device="cpu", runtime="torch")
    origin = options.source or model.card.dataset
    dataset = open_origin(origin) if options.source is None else as_dataset(origin)
    with tempfile.TemporaryDirectory() as room:
        folder = model.save(Path(room) / "model")
        if not (folder / ENCODER).is_file():
            export_onnx(model, folder / ENCODER)
        export_int8(model, dataset.train, folder / INT8)
        sizes = {"torch": (folder / "weights.safetensors").stat().st_size}
        sizes |= {"onnx": (folder / ENCODER).stat().st_size, "int8": (folder / INT8).stat().st_size}
        ways = {"torch": Timed(model.embed_pixels)}
        for name in ("onnx", "int8"):
            ways[name] = Timed(load(folder, runtime=name).embed_pixels)
        side = model.card.config.data.store_size
        for way in ways.values():  # the first images take longer than all others
            way(np.zeros((2, 3, side, side), np.uint8))
            way.images, way.seconds = 0, 0.0
        parts = []
        for images in (dataset.train, dataset.test):
            parts.append(embed_readable(model, some_of(images, options.images), others=ways))
    books, codes, maps = model.codebooks, {}, {}
    gallery, queries = parts
    for name in ways:
        codes[name] = [books.encode(part.others[name]) for part in parts]
        maps[name] = evaluate_codes(
            LabelledEmbeddings(queries.others[name], queries.images.labels),
            codes[name][0],
            gallery.images.labels,
            books,
            query_norm=model.query_norm,
        ).map_percent
    rates = {name: way.images / way.seconds for name, way in ways.items()}
    return [
        {
            "runtime": name,
            "MB": round(sizes[name] / 1e6, 1),
            "images/s": round(rates[name], 1),
            "x torch": round(rates[name] / rates["torch"], 2),
            "same codes %": round(_same(codes[name][1], codes["torch"][1]), 2),
            "MAP": round(maps[name], 2),
            "MAP lost": round(maps["torch"] - maps[name], 2),
            "must": _must(name),
        }
        for name in ways
    ]


def _same(codes: NDArray[np.uint8], others: NDArray[np.uint8]) -> float:
    return 100 * float((codes == others).all(axis=1).mean())


def _must(name: str) -> str:
    if name == "torch":
        return ""
    if name == "onnx":
        return f"{ONNX_SPEED} x, {SAME_CODES} %, MAP within {ONNX_LOSS}"
    return f"{INT8_SPEED} x, MAP within {INT8_LOSS}"


def measure_install(options: argparse.Namespace) -> list[Row]:
    """Install the package into an empty environment and look at its size."""
    with tempfile.TemporaryDirectory() as room:
        python = Path(room) / "bin" / "python"
        subprocess.run(["uv", "venv", "-q", "-p", sys.executable, room], check=True)
        subprocess.run(
            ["uv", "pip", "install", "-q", "--compile-bytecode", "--python", python, ROOT],
            check=True,
        )
        sizes = Counter[str]()
        for path in Path(room).rglob("*"):
            if path.is_file() and not path.is_symlink():
                inside = path.relative_to(room).parts
                package = inside[inside.index("site-packages") + 1] if len(inside) > 4 else "other"
                sizes[package.removesuffix(".libs")] += path.stat().st_blocks * 512
    rows: list[Row] = [{"package": "all", "MB": sizes.total() >> 20, "must": f"{INSTALL_MB}"}]
    return rows + [{"package": name, "MB": size >> 20} for name, size in sizes.most_common(8)]


# A section is a function from the options to the rows of a table.
SECTIONS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "codes": measure_codes,
    "first": measure_first,
    "install": measure_install,
    "serve": measure_served,
    "start": measure_start,
    "train": measure_train,
}


def print_table(name: str, rows: list[Row]) -> None:
    """Print one section."""
    titles = list(rows[0])
    cells = [[_shown(row.get(title)) for title in titles] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    print(f"\n{name}")
    for line in (titles, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str("" if value is None else value)


def write_sections(path: Path, found: dict[str, list[Row]], options: argparse.Namespace) -> None:
    """Put sections into a file, beside those that stand there."""
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {"made": {}}
    made = provenance(options)
    if options.run:
        config = to_dict(load(options.run, device="cpu").card.config)
        config["model"]["weights"] = Path(config["model"]["weights"]).name
        made["config"] = config
    content["made"] |= dict.fromkeys(found, made)
    path.write_text(json.dumps(content | found, indent=1) + "\n", "utf-8")


def main() -> None:
    """Measure the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="+", choices=sorted(SECTIONS))
    parser.add_argument("--run", type=Path, help="a folder that phpq train wrote")
    parser.add_argument("--source", help="its data set, if that has moved")
    parser.add_argument("--images", type=int, help="codes: at most so many of each split")
    parser.add_argument("--gallery", type=Path, help="start, serve: one with ONNX files")
    add_options(parser)
    parser.add_argument("--json", type=Path, help="file that these sections are written into")
    options = parser.parse_args()
    found = {name: SECTIONS[name](options) for name in options.sections}
    machine = {"cores": os.cpu_count(), "machine": platform.platform()}
    if options.json:
        write_sections(options.json, found, options)
    print(f"{machine['cores']} cores, {machine['machine']}")
    for name, rows in found.items():
        print_table(name, rows)


if __name__ == "__main__":
    main()
