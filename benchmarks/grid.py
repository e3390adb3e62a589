"""What running several cells at once gives over one by one, on the same machine.

    python benchmarks/grid.py --data cub200:DIR --weights FILE --at-once 8 --out grid.json

Trainings are run into fresh folders, one by one and several at once, from the same decoded images.
Both wall times include all starts. One by one may be timed at some of the code lengths only
(--one-by-one-bits): then every further length is taken to cost what the cheapest timed cell of each
method did, so that what is done once in a process, as compiling, counts once. The cost of a cell
hardly depends on its length; the cells' seconds are written beside the result.

With --commands the same trainings are run a third way, as `phpq train` commands one after the
other: each starts anew, decodes the images and learns its own classifier. What the grid gives over
that is what it shares, and several at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import provenance

from phpq.reproduce.command import Options, reproduce


def main() -> None:
    """Run the cells both ways and write the wall times."""
    options = read_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        cache = options.cache or Path(scratch) / "pixels"
        if not cache.is_dir():  # decodes the images
            run(options, Path(scratch) / "warm", cache, processes=1, bits=options.bits, epochs=1)
        alone = options.one_by_one_bits or options.bits
        rows: list[dict[str, Any]] = []

        def note(row: dict[str, Any]) -> None:
            """Write down all that is known so far: an interrupted run keeps what it measured."""
            rows.append(row)
            write(options, rows)

        for number in options.at_once:
            note(run(options, folder / str(number), cache, processes=number, bits=options.bits))
        for mode in options.one_by_one:
            name = folder / f"1-{mode}"
            note(run(options, name, cache, processes=1, bits=alone, accelerate=mode))
        if options.commands:
            note(run_commands(options, folder / "commands", bits=alone))
    print_table(rows)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the rows, and how they compare."""
    content = {
        "data": options.data.partition(":")[0],
        "epochs": options.epochs,
        "seed": options.seed,
        "methods": options.methods.split(","),
        "bits": options.bits,
        "made": provenance(options, gpu=True),
        "rows": compare(rows, lengths=len(options.bits)),
    }
    options.out.write_text(json.dumps(content, indent=2) + "\n")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="plumage")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--cache", type=Path, default=None, help="folder of decoded images")
    parser.add_argument("--folder", type=Path, default=None, help="keeps the cells")
    parser.add_argument("--methods", default="dpsh,orthohash,pqn,phpq")
    parser.add_argument("--bits", type=int, nargs="+", default=[16])
    parser.add_argument("--one-by-one-bits", type=int, nargs="+", default=None)
    parser.add_argument("--one-by-one", nargs="*", default=["auto"], metavar="ACCELERATE")
    parser.add_argument("--commands", action="store_true", help="phpq train, one by one, too")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, nargs="*", default=[4])
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.FIELD=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default=None)
    options = parser.parse_args()
    if options.commands and options.data.startswith("plumage"):
        parser.error("--commands is for photographs: the grid has settings of its own for plumage")
    return options


def run(
    options: argparse.Namespace,
    folder: Path,
    cache: Path,
    *,
    processes: int,
    bits: list[int],
    epochs: int | None = None,
    accelerate: str = "auto",
) -> dict[str, Any]:
    """Run all cells in a fresh folder; returns wall seconds and what each cell took."""
    begun = time.perf_counter()
    result = reproduce(
        Options(
            target="table1",
            dataset=options.data,
            bits=bits,
            seeds=(options.seed,),
            methods=options.methods.split(","),
            epochs=epochs or options.epochs,
            out=folder,
            weights=options.weights,
            settings=[*options.set, f"training.accelerate={accelerate}"],
            processes=processes,
            cache=cache,
            commit=options.commit,
            report=False,
        ),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    seconds = time.perf_counter() - begun
    if result.failed:
        sys.exit(f"failed: {result.failed}")
    records = [result.records[key] for key in result.ran]
    return {
        "processes": processes,
        "lengths": len(bits),
        "compiled": any(record["compiled"] for record in records),
        "cells": len(records),
        "seconds": round(seconds, 1),
        "further_length_seconds": round(sum(cheapest(records).values()), 1),
        "cell_seconds": {record["key"]: record["seconds"] for record in records},
        "images_per_second": {
            r["key"]: r["images_per_second"] for r in records if "images_per_second" in r
        },
        "map": {r["key"]: round(r["map"], 2) for r in records if "map" in r},
        "hardware": records[0]["hardware"],
    }


def cheapest(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return for each method the least that a cell of its own took, over the lengths."""
    least: dict[str, float] = {}
    for record in records:
        if record["kind"] in ("training", "shallow"):
            name = f"{record['method']}, {record['features']}"
            seconds = record["seconds"]["all"]
            least[name] = min(least.get(name, seconds), seconds)
    return least


def run_commands(options: argparse.Namespace, folder: Path, *, bits: list[int]) -> dict[str, Any]:
    """Train the same by one command after the other; returns wall seconds."""
    seconds = {}
    settings = [word for setting in options.set for word in ("--set", setting)]
    weights = ["--weights", options.weights] if options.weights else []
    for method in options.methods.split(","):
        for length in bits:
            name = f"{method}-{length}"
            words = [sys.executable, "-m", "phpq", "train", options.data]
            words += ["--method", method, "--bits", str(length), *weights, *settings]
            words += ["--epochs", str(options.epochs), "--seed", str(options.seed)]
            words += ["--out", str(folder / name), "--json"]
            begun = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            seconds[name] = round(time.perf_counter() - begun, 1)
            print(f"phpq train, {name}: {seconds[name]} s", file=sys.stderr, flush=True)
    total = round(sum(seconds.values()), 1)
    return {
        "processes": 0,
        "lengths": len(bits),
        "compiled": False,
        "cells": len(seconds),
        "seconds": total,
        "further_length_seconds": round(total / len(bits), 1),
        "cell_seconds": seconds,
    }


def compare(rows: list[dict[str, Any]], *, lengths: int) -> list[dict[str, Any]]:
    """Add to each row its seconds for all lengths, and how they stand to the best one by one."""
    for row in rows:
        further = (lengths - row["lengths"]) * row["further_length_seconds"]
        row["seconds_for_all"] = round(row["seconds"] + further, 1)
    alone = [row["seconds_for_all"] for row in rows if row["processes"] == 1]
    for row in rows:
        row["times_as_fast"] = round(min(alone) / row["seconds_for_all"], 2) if alone else None
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a line for each way to run the cells."""
    print(" at once  compiled  cells run  seconds  seconds for all  times the best one by one")
    for row in rows:
        print(
            f"{row['processes'] or 'commands':>8}  {'yes' if row['compiled'] else 'no':>8}  "
            f"{row['cells']:9}  {row['seconds']:7.1f}  {row['seconds_for_all']:15.1f}  "
            f"{row['times_as_fast'] or '-':>26}"
        )


if __name__ == "__main__":
    main()
