"""Settings, data and networks so small that a whole training run takes a second on one core."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from phpq.config import RunConfig, override, parse
from phpq.data import Dataset, LabelledImages, plumage
from phpq.model import Model, Network, build_method
from phpq.training import Reporter, train_run

SIDE = 32  # pixels
CLASSES = 4

# Every setting that bears on a result is spelt out: the tests must not depend on tuned defaults.
TINY: dict[str, dict[str, Any]] = {
    "data": {
        "store_size": SIDE,
        "fit": "squash",
        "crop_size": SIDE,
        "crop_scale": 0.5,
        "crop_ratio": 1.3,
        "flip": True,
        "jitter": 0.0,
        "eval_size": SIDE,
        "eval_crop": 1.0,
        "eval_flip": False,
    },
    "model": {
        "backbone": "test_resnet",
        "weights": "none",
        "levels": 3,
        "pooling": "gem",
        "rho": [3.0, 2.0, 1.0],
        "embedding_dim": 32,
        "embedding_norm": "batch",
    },
    "quantizer": {
        "num_codebooks": 4,
        "codebook_size": 8,
        "alpha": 4.0,
        "kappa": 3,
        "init": "kmeans",
        "query_norm": "unit",
    },
    "loss": {
        "tau": 0.5,
        "label_smoothing": 0.1,
        "embedding_weight": 0.0,
        "gamma": 1.0,
        "positive_margin": 0.2,
        "negative_margin": 1.0,
        "positive_mean": "true",
    },
    "training": {
        "epochs": 4,
        "batch_size": 8,
        "sampler": "shuffle",
        "images_per_class": 2,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "head_rate_factor": 3.0,
        "weight_decay": 0.0,
        "warmup_epochs": 1.0,
        "final_rate": 0.01,
        "codebook_epoch": 0,
        "ema_decay": 0.9,
        "seed": 0,
        "precision": "float32",
        "images_on_device": "on",
        "workers": 1,
        "evaluate_every": 2,
        "checkpoint_seconds": 0.0,
        "onnx": False,  # takes longer than all the rest
    },
}


def tiny_config(*assignments: str) -> RunConfig:
    """Return the tiny settings with `stage.field=value` changes."""
    return override(parse(TINY), assignments)


def tiny_birds(images_per_species: int = 6, test_per_species: int = 2) -> Dataset:
    """Return drawn birds of four species."""
    return plumage(CLASSES, images_per_species, test_per_species=test_per_species, size=SIDE)


@dataclass(frozen=True)
class ColourReader:
    """Draws noise around the colour of a class."""

    seed: int
    per_class: int

    def read(self, index: int) -> Image.Image:
        colour = ((230, 40, 40), (40, 230, 40), (40, 40, 230), (220, 220, 40))
        rng = np.random.default_rng([self.seed, index])
        noise = rng.normal(colour[index // self.per_class], 40, (SIDE, SIDE, 3))
        return Image.fromarray(noise.clip(0, 255).astype(np.uint8))


def colours() -> Dataset:
    """Return four classes that anything can tell apart."""

    def split(name: str, per_class: int, seed: int) -> LabelledImages:
        ids = tuple(f"{name}{i}" for i in range(CLASSES * per_class))
        labels = np.repeat(np.arange(CLASSES), per_class)
        names = ("red", "green", "blue", "yellow")
        return LabelledImages(name, ids, labels, names, ColourReader(seed, per_class))

    return Dataset("colours", split("train", 8, 0), split("test", 4, 1))


def tiny_network(*assignments: str, seed: int = 0) -> Network:
    """Return a network of the tiny settings with fixed random weights."""
    config = tiny_config(*assignments)
    torch.manual_seed(seed)
    network = build_method(config, CLASSES)
    assert isinstance(network, Network)
    return network


def tiny_train(
    folder: Path, config: RunConfig, *, resume: bool = False, reporter: Reporter | None = None
) -> Model:
    """Train on the drawn birds on the CPU."""
    return train_run(tiny_birds(), config, folder, device="cpu", resume=resume, reporter=reporter)
