"""What running several cells at once gives over one by one, on the same cells and machine.

    python benchmarks/grid.py --data cub200:DIR --weights FILE --at-once 4 --out grid.json

The same few trainings are run into fresh folders, first one by one, then several at once, with
the same decoded images. The ratio of the two wall times is the gain; both include all starts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from phpq.reproduce.command import Options, reproduce


def main() -> None:
    """Run the cells both ways and write the two wall times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="plumage")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--cache", type=Path, default=None, help="folder of decoded images")
    parser.add_argument("--methods", default="dpsh,orthohash,pqn,phpq")
    parser.add_argument("--bits", type=int, nargs="+", default=[16])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--at-once", type=int, nargs="+", default=[4])
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.FIELD=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder) / "pixels"
        if not cache.is_dir():  # decodes the images
            run(options, Path(folder) / "warm", cache, processes=1, epochs=1)
        rows = [
            run(options, Path(folder) / str(number), cache, processes=number)
            for number in (1, *options.at_once)
        ]
    for row in rows:
        row["times_as_fast"] = round(rows[0]["seconds"] / row["seconds"], 2)
        print(
            f"{row['processes']} at once: {row['seconds']:.1f} s for {row['cells']} cells, "
            f"{row['times_as_fast']:.2f} times as fast as one by one"
        )
    content = {"epochs": options.epochs, "data": options.data.partition(":")[0], "rows": rows}
    options.out.write_text(json.dumps(content, indent=2) + "\n")


def run(
    options: argparse.Namespace,
    folder: Path,
    cache: Path,
    *,
    processes: int,
    epochs: int | None = None,
) -> dict[str, Any]:
    """Run all cells in a fresh folder; returns wall seconds and what each cell took."""
    begun = time.perf_counter()
    outcome = reproduce(
        Options(
            target="table1",
            dataset=options.data,
            bits=options.bits,
            seeds=(0,),
            methods=options.methods.split(","),
            epochs=epochs or options.epochs,
            out=folder,
            weights=options.weights,
            settings=options.set,
            processes=processes,
            cache=cache,
            commit=options.commit,
            report=False,
        ),
        say=lambda text: print(text, file=sys.stderr),
    )
    seconds = time.perf_counter() - begun
    if outcome.result.failed:
        sys.exit(f"failed: {outcome.result.failed}")
    records = outcome.result.records.values()
    return {
        "processes": processes,
        "cells": len(outcome.result.ran),
        "seconds": round(seconds, 1),
        "cell_seconds": {record["key"]: record["seconds"] for record in records},
        "map": {r["key"]: round(r["map"], 2) for r in records if "map" in r},
        "hardware": next(record["hardware"] for record in records),
    }


if __name__ == "__main__":
    main()
