"""How much faster several processes train than one, on the same global batch of the same run.

    python benchmarks/distributed.py                              # drawn birds, on the CPU
    python benchmarks/distributed.py --device cuda --backbone resnet50 --batch-size 512 --json

Each run is a `phpq train` under torchrun, so that one process goes the same way as many. On the CPU
every process gets its share of the cores, so that the same cores do all runs: what is measured is
the cost of working together. With --threads 1 each process brings a core of its own, as it brings a
GPU on CUDA: that is the speed-up of adding hardware, for no more processes than there are cores.
The median epoch counts, without the first; losses are compared too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from provenance import provenance

from phpq.evaluation.history import read_rows


@dataclass(frozen=True)
class Speed:
    """One number of processes."""

    processes: int
    threads: int  # of each process
    images_per_second: float
    speedup: float  # over one process
    loss_difference: float  # largest over the epochs, relative to one process


def main() -> None:
    """Measure all numbers of processes and print a table or JSON."""
    options = _options()
    rows: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in options.processes:
            rows[processes] = _train(options, processes, Path(folder) / str(processes))
            print(f"{processes} processes: done", file=sys.stderr)
    first = rows[options.processes[0]]
    speeds = [_speed(options, processes, found, first) for processes, found in rows.items()]
    result = {
        "made": provenance(options),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "source": options.source,
        "backbone": options.backbone,
        "batch_size": options.batch_size,
        "device": options.device,
        "speeds": [asdict(speed) for speed in speeds],
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2) if options.json else _table(result, speeds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed-up of several training processes.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--source", default="plumage:species=8,images=40")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=64, help="Of the training crops.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--threads", type=int, default=0, help="Of each process; 0 shares the cores among all."
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="A file for the JSON.")
    return parser.parse_args()


def _threads(options: argparse.Namespace, processes: int) -> int:
    return int(options.threads) or max(1, (os.cpu_count() or 1) // processes)


def _train(options: argparse.Namespace, processes: int, run: Path) -> list[dict[str, Any]]:
    """Train under torchrun and return the rows of metrics.jsonl."""
    side = options.side
    settings = {
        "data.store_size": side,
        "data.crop_size": side,
        "data.eval_size": side,
        "model.backbone": options.backbone,
        "training.epochs": options.epochs,
        "training.batch_size": options.batch_size,
        "training.optimizer": "sgd",  # losses are compared: Adam amplifies rounding
        "training.learning_rate": 0.001,
        "training.evaluate_every": 1000,
        # One process, too, runs plain steps: a captured graph is another matter.
        "training.accelerate": "off",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={processes}", "-m", "phpq", "train", options.source]
    launcher += ["--weights", "none", "--device", options.device, "--out", str(run)]
    for name, value in settings.items():
        launcher += ["--set", f"{name}={value}"]
    environment = os.environ | {"OMP_NUM_THREADS": str(_threads(options, processes))}
    done = subprocess.run(launcher, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{processes} processes failed:\n{done.stderr}")
    return read_rows(run)


def _speed(
    options: argparse.Namespace,
    processes: int,
    rows: list[dict[str, Any]],
    first: list[dict[str, Any]],
) -> Speed:
    speed = _images_per_second(rows)
    pairs = zip(rows, first, strict=True)
    difference = max(abs(row["loss"] / other["loss"] - 1) for row, other in pairs)
    return Speed(
        processes,
        _threads(options, processes),
        round(speed, 1),
        round(speed / _images_per_second(first), 2),
        float(f"{difference:.2g}"),
    )


def _images_per_second(rows: list[dict[str, Any]]) -> float:
    return float(statistics.median(row["images_per_second"] for row in rows[1:] or rows))


def _table(result: dict[str, Any], speeds: list[Speed]) -> str:
    lines = [
        f"{result['backbone']}, batch {result['batch_size']} of all, {result['device']}, "
        f"{result['machine']}",
        "",
        "| processes | threads each | images/s | speed-up | loss differs by |",
        "|---|---|---|---|---|",
    ]
    for speed in speeds:
        lines.append(
            f"| {speed.processes} | {speed.threads} | {speed.images_per_second} | "
            f"{speed.speedup:.2f} | {speed.loss_difference:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
