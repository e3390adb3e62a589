"""The command `phpq reproduce`: runs cells, writes tables and pages, returns the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from phpq.data import Dataset
from phpq.errors import ConfigError, DataError
from phpq.machine import code_commit
from phpq.reproduce.grid import GridPlan, Subject, make_plan, open_subject, recall_subject
from phpq.reproduce.paper import check_methods, check_recipe, expand_targets
from phpq.reproduce.runner import GridResult, Say, collect, run_plan
from phpq.reproduce.store import Store
from phpq.reproduce.work import WorkerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to reproduce, and how."""

    target: str  # one of `paper.TARGETS`
    dataset: str = "cub200"  # what `open_dataset` takes
    bits: Sequence[int] = (16, 32, 48, 64)
    seeds: Sequence[int] | None = None  # None is 0, 1, 2, and 0 alone for drawn birds
    methods: Sequence[str] = ()  # that tables of methods show; empty is all
    recipe: str = "ours"  # of variants of PHPQ: one of `phpq.config.READINGS`, or "both"
    epochs: int | None = None  # of every training; None leaves the default
    out: Path | None = None  # None is `reproduce/<data set>`
    weights: str | None = None  # "hub", "none" or a file; None chooses by the data set
    settings: Sequence[str] = ()  # such as "training.batch_size=64", for every cell
    processes: int | None = None  # cells at once; None chooses, 0 runs them in this process
    device: str = "auto"
    cache: Path | None = None  # folder of decoded pixels; None is inside `out`
    home: Path | None = None  # where downloads are kept
    commit: str | None = None  # of the code; None asks git
    report: bool = True  # whether tables, figures and pages are written
    run: bool = True  # False reports on finished cells without running any


def reproduce(options: Options, *, say: Say) -> GridResult:
    """Run cells that are not finished, and report on all; `say` gets a line for each of them."""
    # Check names before the data set is opened.
    expand_targets(options.target)
    check_methods(options.methods)
    check_recipe(options.recipe)
    subject, dataset, folder = _subject(options)
    usual = (0,) if subject.drawn else (0, 1, 2)
    lengths, seeds = options.bits, usual if options.seeds is None else options.seeds
    plan = make_plan(
        subject,
        options.target,
        bits=lengths,
        seeds=seeds,
        methods=options.methods,
        recipe=options.recipe,
    )
    store = Store(folder)
    if options.run:
        result = _run(options, plan, store, say)
    else:
        result = collect(plan, store, with_arrays=False)
        if not result.records:
            raise ConfigError(
                f"There is no finished cell of this grid in {str(folder)!r}. Run it first, with "
                "the same options and without --report-only."
            )
    if options.report and find_spec("jinja2") is None:
        say("pages are left for later: jinja2 is not installed here. Elsewhere: --report-only")
    elif options.report:
        from phpq.reproduce.pages import write_pages

        written = write_pages(plan, result.records, store, dataset=dataset, name=options.target)
        result.tables, result.pages = written
    return result


def _run(options: Options, plan: GridPlan, store: Store, say: Say) -> GridResult:
    subject, started = plan.subject, datetime.now(UTC)
    device, processes = _device(options.device), options.processes
    if processes is None:
        processes = choose_processes(device, subject)
    store.prepare()
    manifest = store.read_manifest()
    known = manifest.get("dataset", subject.facts())
    if known["fingerprint"] != subject.fingerprint:
        raise ConfigError(
            f"{str(store.folder)!r} holds a grid on other images ({known['name']!r}, "
            f"{known['gallery']} + {known['queries']} of them). Give another folder (--out DIR)."
        )
    manifest["dataset"] = subject.facts()
    store.write_manifest(manifest)
    place = WorkerContext(
        store=store,
        subject=subject,
        device=device,
        cache=options.cache or store.folder / "pixels",
        home=options.home,
        commit=code_commit() if options.commit is None else options.commit,
        processes=max(1, processes),
    )
    try:
        result = run_plan(plan, place, processes=processes, say=say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "Finished cells are kept; the same command goes on from there."
        ) from None
    if result.ran:
        done = {
            "started": started.isoformat(timespec="seconds"),
            "device": device,
            "processes": processes,
            "cells": len(result.ran),
            "seconds": round(result.seconds, 1),
            "cell_seconds": round(result.cell_seconds, 1),
            "failed": len(result.failed),
            "left": len(result.left),
        }
        manifest["commands"] = [*manifest.get("commands", []), done]
        store.write_manifest(manifest)
    return result


def choose_processes(device: str, subject: Subject) -> int:
    """Return how many cells to run at once: what fits on the GPU, or one per core."""
    cores = os.cpu_count() or 1
    if not device.startswith("cuda"):
        return min(4, cores)
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    # An estimate: 6 GiB for activations, graph and libraries at batch 128, and the decoded images
    # once per cell. Eight cells fill an H200: docs/results/grid.md
    batch = subject.base.training.batch_size / 128
    pixels = (subject.gallery + subject.queries) * 3 * subject.base.data.store_size**2
    needed = int(6 * (1 << 30) * max(0.5, batch)) + pixels
    return max(1, min(8, cores // 2, free // needed))


def _device(name: str) -> str:
    if name == "auto":  # without `resolve_device`, whose imports take seconds
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu":
        from phpq.model.retrieval import resolve_device

        resolve_device(name)  # raises if it does not exist
    return name


def _subject(options: Options) -> tuple[Subject, Dataset | None, Path]:
    """Return the subject, its data set if it is here, and the folder of the grid."""
    own: dict[str, Any] = {"settings": tuple(options.settings), "epochs": options.epochs}
    facts = None
    if options.out is not None and not options.run:
        facts = Store(options.out).read_manifest().get("dataset")
    if options.out is None or facts is None:
        subject, dataset = open_subject(
            options.dataset, weights=options.weights, home=options.home, **own
        )
        return subject, dataset, options.out or Path("reproduce") / subject.name
    known = recall_subject(facts, **own)
    try:  # images are needed for pictures only
        subject, dataset = open_subject(options.dataset, weights="none", home=options.home)
    except DataError:
        return known, None, options.out
    here = subject.fingerprint == known.fingerprint
    return known, dataset if here else None, options.out
