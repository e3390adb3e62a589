"""Kinds that training never saw: one recipe, several seeds, a table and `unseen.json`.

    python benchmarks/unseen.py cub200:DIR --weights resnet18=FILE resnet50=FILE --out docs/results

Three ways to split a data set, all learned by one recipe at 64 bits: `half` (the first half of the
classes, all their images; new kinds are the other half), `open` (the first 95 % of the classes) and
`seen` (all classes, the official split). Compared with: float search over the same embeddings,
frozen features, a product quantizer fitted to the gallery, and the model's own codes. Backbones
after the first are learned by half and seen at 64 bits alone.
Runs are kept in --runs and are not trained again; several train at once. The `unseen_result.json`
of a run is enough of it: runs of several machines are so put together, by --report-only.

Without a GPU the last stage learns, from features that all runs share:

    python benchmarks/unseen.py cub200:DIR --weights resnet18=FILE resnet50=FILE --modes half open \
        --set training.trainable=last --at-once 1 --measure-at-once 1 --json unseen-last
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from provenance import provenance
from rich.console import Console
from rich.table import Table
from shared_features import shared_model

from phpq import api, load
from phpq.additive import fit_additive
from phpq.data import Dataset
from phpq.evaluation.embedding import embed_readable
from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes
from phpq.evaluation.run import evaluate_model
from phpq.evaluation.unseen import (
    BEFORE_REFIT,
    BY_THEMSELVES,
    BY_TRUE_CLASS,
    HALF_FITTED,
    HALF_LABELLED,
    RIGHT_LABELS,
    TRUSTS,
    WRONG_LABELS,
)
from phpq.model import Model

MODES = {
    "half": ("data.holdout_classes=0.5", "data.learned_images=all"),
    "open": ("data.holdout_classes=0.05",),
    "seen": (),
}
SEEN_BITS = (16, 32, 48, 64)
# Weights of the original paper's form: which convolution halves the map.
STRIDES = {"resnet50": ("model.bottleneck_stride=first",)}
RESULT = "unseen_result.json"
LABELLED = "labelled"
KEPT = ("commit", "date", "machine")  # of where each run was measured


@dataclass(frozen=True, slots=True)
class Job:
    """One training and its measures."""

    backbone: str
    mode: str
    seed: int
    bits: int = 64

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return f"{self.backbone}-{self.mode}-{self.bits}-seed{self.seed}"


def planned(backbones: list[str], seeds: list[int], modes: list[str]) -> list[Job]:
    """List all trainings."""
    jobs = [
        Job(name, mode, seed) for name in backbones for mode in ("half", "seen") for seed in seeds
    ]
    jobs += [Job(backbones[0], "open", seed) for seed in seeds]
    jobs += [Job(backbones[0], "seen", seed, bits) for bits in SEEN_BITS[:-1] for seed in seeds]
    return [job for job in jobs if job.mode in modes]


def train(job: Job, options: argparse.Namespace) -> None:
    """Train in a process of its own, unless that is done."""
    folder = options.runs / job.name
    if any((folder / name).is_file() for name in (RESULT, "general.safetensors")):
        return
    weights = dict(pair.split("=", 1) for pair in options.weights)
    settings = [*MODES[job.mode], *STRIDES.get(job.backbone, ()), *options.set]
    command = [sys.executable, "-m", "phpq", "train", options.source, "--out", str(folder)]
    command += ["--recipe", options.recipe, "--bits", str(job.bits), "--seed", str(job.seed)]
    command += ["--backbone", job.backbone, "--weights", weights[job.backbone]]
    command += [word for setting in settings for word in ("--set", setting)]
    run(job, command)


def measured(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own, unless that is done."""
    folder = options.runs / job.name
    if not (folder / RESULT).is_file():
        run(job, [sys.executable, __file__, options.source, "--measure", str(folder), job.mode])
    result: dict[str, Any] = json.loads((folder / RESULT).read_text("utf-8"))
    return result


def run(job: Job, command: list[str]) -> None:
    """Run a command for a job; what it said is shown if it fails."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    what = "measured" if "--measure" in command else "trained"
    print(f"{job.name} {what}: {time.monotonic() - start:.0f} s", flush=True)
    if done.returncode:
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", flush=True)
        raise RuntimeError(f"{job.name} was not {what}; the same command goes on from there")


def run_all(jobs: list[Job], options: argparse.Namespace) -> dict[Job, dict[str, Any]]:
    """Train some at once, and meanwhile measure those that are trained, which takes no GPU."""
    with (
        ThreadPoolExecutor(options.measure_at_once) as measuring,
        ThreadPoolExecutor(options.at_once) as training,
    ):

        def then_measured(job: Job) -> Future[dict[str, Any]]:
            train(job, options)
            return measuring.submit(measured, job, options)

        begun = {job: training.submit(then_measured, job) for job in jobs}
        return {job: future.result().result() for job, future in begun.items()}


def measure(options: argparse.Namespace) -> None:
    """Measure one run, and write what was found into its folder."""
    folder, mode = Path(options.measure[0]), options.measure[1]
    dataset = api.as_dataset(options.source)
    model: Model = load(folder)
    if model.card.config.training.trainable != "all" and not torch.cuda.is_available():
        model, frozen = shared_model(folder, folder.parent / "features")
        evaluation = evaluate_model(model, dataset, frozen=frozen)
    else:
        evaluation = api.evaluate(folder, dataset, folder / "evaluation")
    found: dict[str, Any] = {"map": evaluation.codes.map_percent}
    if mode == "seen":
        found[LABELLED] = labelled(model, dataset)
    else:
        found |= evaluation.to_dict()["unseen"]
    found["made"] = provenance(options, gpu=True)
    (folder / RESULT).write_text(json.dumps(found, indent=1), "utf-8")


def labelled(model: Model, dataset: Dataset) -> dict[str, float]:
    """Measure the MAP of a gallery's own codebooks with its labels, by length of code."""
    general = {"general": partial(model.embed_pixels, space="general")}
    queries, rows = (
        embed_readable(model, part, others=general).others["general"]
        for part in (dataset.test, dataset.train)
    )
    labels = dataset.train.labels
    names = [dataset.class_names[label] for label in labels]
    asking, found = LabelledEmbeddings(queries, dataset.test.labels), {}
    for bits in SEEN_BITS:
        books = fit_additive(rows, names, num_codebooks=bits // 8)
        codes = books.encode(rows, names)
        scores = evaluate_codes(asking, codes, labels, books, cutoffs=[1], kept=rows)
        found[str(bits)] = scores.map_percent
    return found


def mean_of(values: Iterable[float]) -> dict[str, Any]:
    """Return mean and values of the seeds, in per cent; nothing of none."""
    listed = [round(value, 2) for value in values]
    if not listed:
        return {}
    return {"mean": round(statistics.mean(listed), 2), "seeds": listed}


def fold(found: dict[Job, dict[str, Any]]) -> dict[str, Any]:
    """Put the runs together: means over seeds, and beside them what each seed gave.

    What no run measured is left out.
    """

    def results(backbone: str, mode: str, bits: int = 64) -> list[Any]:
        wanted = backbone, mode, bits
        return [r for job, r in found.items() if (job.backbone, job.mode, job.bits) == wanted]

    def over(backbone: str, mode: str, *path: str, bits: int = 64) -> dict[str, Any]:
        return mean_of(functools.reduce(getitem, path, r) for r in results(backbone, mode, bits))

    backbones = list(dict.fromkeys(job.backbone for job in found))
    first = backbones[0]
    half = {
        backbone: {
            "float": {k: over(backbone, "half", "half", "float", k) for k in ("r1", "map_r")},
            "codes": {
                bits: {k: over(backbone, "half", "half", "codes", bits, k) for k in ("r1", "map_r")}
                for bits in ("32", "64", "128")
            },
        }
        for backbone in backbones
    }
    shown = ("map", "p1", "all_map", "five_shot")
    labelled = {
        backbone: {"64": {k: over(backbone, "half", "labelled", "64", k) for k in shown}}
        for backbone in backbones
    }
    plain = ("unseen_all", "unseen_unseen", "seen_seen")
    names = (*plain, *(f"{name}_labelled" for name in plain))
    tree: dict[str, Any] = without_gaps(
        {
            "half": half,
            "labelled": labelled,
            "in_use": {name: in_use(results(name, "half")) for name in backbones},
            "open": {"64": {name: over(first, "open", "open", "64", name) for name in names}},
            "seen": {str(bits): over(first, "seen", "map", bits=bits) for bits in SEEN_BITS},
            "seen_labelled": {
                str(bits): over(first, "seen", LABELLED, str(bits)) for bits in SEEN_BITS
            },
            "seen_by": {backbone: {"64": over(backbone, "seen", "map")} for backbone in backbones},
        }
    )
    return tree


# What happens to a gallery of new kinds: (protocol of `evaluate_unseen`, value, gallery's labels).
IN_USE = {
    "copies find their original": ("own look", "r10", ("without", "with")),
    "labelled rows of half labelled": (HALF_LABELLED.format("labelled"), "r1", ("with",)),
    "other rows of half labelled": (HALF_LABELLED.format("unlabelled"), "r1", ("with",)),
    "added, before a refit": (BEFORE_REFIT, "r1", ("without", "with")),
    "added, after a refit": ("unseen@all", "r1", ("without", "with")),
    "codebooks of the other half": (HALF_FITTED, "r1", ("without",)),
}
OF_TRUST = {
    "right": (RIGHT_LABELS, "r1"),
    "a tenth wrong": (WRONG_LABELS, "r1"),
    "wrong ones by their true class": (BY_TRUE_CLASS, "r1"),
    "wrong ones by themselves": (BY_THEMSELVES, "r10"),
}


def in_use(results: list[Any]) -> dict[str, Any]:
    """Return what happens to 8-byte codes as a gallery is used: means over runs, in per cent."""

    def score(protocol: str, value: str, labels: str) -> dict[str, Any]:
        place = protocol, "codes", labels, 64
        return mean_of(
            one["values"][value]
            for result in results
            for one in result["scores"]
            if (one["protocol"], one["way"], one["labels"], one["bits"]) == place
        )

    plain = {
        name: {used: score(protocol, value, used) for used in labels}
        for name, (protocol, value, labels) in IN_USE.items()
    }
    by_trust = {
        f"{trust:g}": {
            name: score(protocol.format(trust), value, "with")
            for name, (protocol, value) in OF_TRUST.items()
        }
        for trust in TRUSTS
    }
    return plain | {"trust": by_trust}


def without_gaps(tree: Any) -> Any:
    """Return the same tree without its empty parts."""
    if not isinstance(tree, dict) or "mean" in tree:
        return tree
    kept = {key: without_gaps(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value}


def means(tree: Any) -> Any:
    """Return the same tree with means alone."""
    if isinstance(tree, dict):
        return (
            tree["mean"] if "mean" in tree else {key: means(value) for key, value in tree.items()}
        )
    return tree


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, mean and seeds) of all figures."""
    if "mean" in tree:
        yield path.strip(" "), tree
        return
    for key, value in tree.items():
        yield from flatten(value, f"{path} {key}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--weights", nargs="+", default=["resnet18=hub"], metavar="BACKBONE=FILE")
    parser.add_argument("--recipe", default="large", help="As in phpq train.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/unseen"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--at-once", type=int, default=3, help="Trainings.")
    parser.add_argument("--measure-at-once", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="STAGE.FIELD=VALUE")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--json", default="unseen", metavar="NAME", help="Of the file in --out.")
    parser.add_argument(
        "--report-only", action="store_true", help="Put together the runs that are measured."
    )
    parser.add_argument("--measure", nargs=2, metavar=("RUN", "MODE"))
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    backbones = [pair.split("=")[0] for pair in options.weights]
    jobs = planned(backbones, options.seeds, options.modes)
    if options.report_only:
        jobs = [job for job in jobs if (options.runs / job.name / RESULT).is_file()]
    found = run_all(jobs, options)
    tree = fold(found)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {job.name: result["made"] for job, result in found.items()}
    content = means(tree) | {"by_seed": tree, "made": provenance(options, gpu=True)}
    content["made"]["runs"] = {name: {k: made[k] for k in KEPT} for name, made in runs.items()}
    (options.out / f"{options.json}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    table = Table("measure", "mean", "seeds", title="New kinds, per cent")
    for path, value in flatten(tree):
        table.add_row(path, f"{value['mean']:.2f}", " ".join(f"{v:.1f}" for v in value["seeds"]))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
