"""Facts to show: the machine, a run folder or a data set in, plain data out, ready for JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phpq._version import __version__
from phpq.config import DataConfig, to_dict
from phpq.data import Dataset, data_home
from phpq.evaluation.embedding import Progress, find_bad_images
from phpq.evaluation.history import epoch_scores, read_rows
from phpq.evaluation.run import FOLDER, METRICS
from phpq.files import read_json

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "faiss-cpu", "safetensors")


def describe_machine(*, home: Path | None = None) -> dict[str, Any]:
    """Return versions, devices, threads and the folder of downloads."""
    import torch

    devices = [{"name": "cpu", "model": platform.processor() or platform.machine()}]
    devices += [
        {"name": f"cuda:{number}", "model": torch.cuda.get_device_name(number)}
        for number in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "model": "Apple GPU"})
    return {
        "phpq": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": devices,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "data_home": str(data_home(home)),
    }


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the settings, the progress and the results of a run."""
    from phpq.model.checkpoint import WEIGHTS, read_card
    from phpq.training.run import STATE

    card = read_card(folder)
    rows = read_rows(folder)
    epochs = epoch_scores(rows)
    last = rows[-1] if rows else {}
    unfinished = (folder / STATE).is_file() or not (folder / WEIGHTS).is_file()
    evaluation, path = None, folder / FOLDER / METRICS
    if path.is_file():
        metrics = read_json(path, remedy=f"Run phpq evaluate {folder} again.")
        kept = ("dataset", "map", "map_float", "map_pq")
        evaluation = {"folder": str(path.parent)} | {name: metrics.get(name) for name in kept}
    return {
        "run": str(folder),
        "dataset": card.dataset,
        "classes": len(card.class_names),
        "method": card.config.method.name,
        "bits": card.config.quantizer.bits,
        "backbone": card.config.model.backbone,
        "epochs": {
            "done": last.get("epoch", 0),
            "planned": card.config.training.epochs,
            "finished": not unfinished,
        },
        "map": None if epochs is None else asdict(epochs),
        "code_health": {
            name: last.get(name) for name in ("distinct_codes", "dead_codewords", "entropy_bits")
        },
        "evaluation": evaluation,
        "config": to_dict(card.config),
    }


def describe_dataset(
    dataset: Dataset, *, check_images: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Return classes and sizes; with `check_images` also which images cannot be decoded."""
    sizes = dataset.train.class_sizes()
    smallest = int(sizes.argmin())
    bad: list[dict[str, str]] | None = None
    if check_images:
        bad = [
            {"id": image.id, "reason": image.reason}
            for images in (dataset.train, dataset.test)
            for image in find_bad_images(images, DataConfig(), progress=progress)
        ]
    return {
        "dataset": dataset.name,
        "source": dataset.source,
        "classes": len(dataset.class_names),
        "train_images": len(dataset.train),
        "test_images": len(dataset.test),
        "smallest_class": {
            "name": dataset.class_names[smallest],
            "train_images": int(sizes[smallest]),
        },
        "classes_without_test_image": int((dataset.test.class_sizes() == 0).sum()),
        "bad_images": bad,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
