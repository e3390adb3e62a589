"""Learning without a GPU: minutes to a searchable gallery, MAP beside everything learned on a GPU.

    python benchmarks/laptop.py train --source cub200:DIR --weights FILE [--all RUN]

Learns the first classes of CUB-200-2011 with `--trainable head` and `last`, 64 bits, from an empty
cache, and indexes the training images; the clock runs from the first command to the last. Then
measures MAP of the test images without the gallery's labels (the model's own codes) and with them
(the gallery's own codebooks), as a share of `--all RUN`: a run that learned everything on the same
classes. Limits: 3 and 10 minutes, 85 and 92 per cent. `--again` shows a second run with the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from phpq.data import open_dataset

MINUTES = {"head": 3, "last": 10}
SHARES = {"head": 85, "last": 92}  # per cent of what everything learned reaches
LABELLED = "gallery's own codebooks, with its labels"  # as an evaluation names it
LEARNED = "learned.csv"
Row = dict[str, Any]


def first_classes(source: Path, count: int, out: Path) -> Path:
    """Write the tables of the first classes of CUB-200-2011 beside a link to its images.

    And a table of the training images, which become the gallery.
    """
    labels = dict(line.split() for line in (source / "image_class_labels.txt").open())
    out.mkdir(parents=True)
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt"):
        lines = (source / name).read_text("utf-8").splitlines(keepends=True)
        kept = (line for line in lines if int(labels[line.split()[0]]) <= count)
        (out / name).write_text("".join(kept), "utf-8")
    classes = (source / "classes.txt").read_text("utf-8").splitlines(keepends=True)[:count]
    (out / "classes.txt").write_text("".join(classes), "utf-8")
    (out / "images").symlink_to((source / "images").resolve())
    train = open_dataset(f"cub200:{out}").train
    named = zip(train.ids, train.labels, strict=True)
    lines = [f"{out / image},{train.class_names[label]}\n" for image, label in named]
    (out / LEARNED).write_text("path,label\n" + "".join(lines), "utf-8")
    return out


def phpq(*arguments: str | Path, home: Path) -> tuple[str, float]:
    """Run one command in a process of its own; returns what it printed and its seconds."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "phpq", *map(str, arguments)]
    environment = os.environ | {"PHPQ_HOME": str(home)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout, time.perf_counter() - started


def scores(run: Path, source: str, home: Path) -> dict[str, float]:
    """Return MAP without and with the gallery's labels."""
    found = json.loads(phpq("evaluate", run, source, "--own-codebooks", "--json", home=home)[0])
    own = found["own_codebooks"][LABELLED]
    return {"without": found["scores"]["codes"]["map"], "with": own["map"]}


def measure_train(options: argparse.Namespace) -> list[Row]:
    """Learn, index and measure each choice."""
    if options.source is None or options.weights is None:
        raise SystemExit("train: say what to learn with --source cub200:DIR --weights FILE")
    path = Path(options.source.removeprefix("cub200:"))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as room:
        place = Path(room)
        tables = first_classes(path, options.classes, place / "images")
        source = f"cub200:{tables}"
        best = scores(options.all, source, place / "home") if options.all else None
        for part in options.trainable:
            run, home = place / part, place / f"home-{part}"
            learn = ["train", source, "--trainable", part, "--bits", "64"]
            learn += ["--backbone", options.backbone, "--weights", options.weights]
            learn += [f"--set={setting}" for setting in options.set]
            trained = phpq(*learn, "--out", run, home=home)[1]
            gallery = place / f"{part}.gallery"
            indexed = phpq("index", gallery, tables / LEARNED, "--model", run, home=home)[1]
            again = phpq(*learn, "--out", f"{run}-again", home=home)[1] if options.again else None
            found = scores(run, source, home)
            row: Row = {"trainable": part, "train_s": trained, "index_s": indexed, "again_s": again}
            row |= {"minutes": (trained + indexed) / 60, "limit_minutes": MINUTES[part]}
            for labels, value in found.items():
                row[f"map_{labels}"] = value
                row[f"share_{labels}"] = 100 * value / best[labels] if best else None
            rows.append(row | {"limit_share": SHARES[part]})
        if best:
            rows.append({"trainable": "all", **{f"map_{k}": v for k, v in best.items()}})
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this section can be asked for."""
    parser.add_argument("--weights", help="train: where the backbone starts, a file")
    parser.add_argument("--backbone", default="resnet18", help="train")
    parser.add_argument("--classes", type=int, default=50, help="train: the first so many")
    parser.add_argument("--all", type=Path, help="train: a run that learned everything on them")
    parser.add_argument("--trainable", nargs="+", default=["head", "last"], choices=MINUTES)
    parser.add_argument("--set", action="append", default=[], help="train: a setting of the runs")
    parser.add_argument("--again", action="store_true", help="train: again with the cache")
