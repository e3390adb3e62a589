"""What the demo draws and how it learns: two recipes, each from a seed to birds and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phpq.config import RunConfig, parse, with_bits
from phpq.data import Dataset, plumage

BITS = (16, 32)  # code lengths, each learned by a run of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How much is drawn, and how long is learned.

    Attributes:
        species: Drawn species; each run of four is a family of look-alikes.
        images: Training images of a species, which are the gallery too.
        queries: Test images of a species.
        size: Side of an image, pixels.
        epochs: Of each training.
        evaluate_every: Epochs between two points of the MAP curve.
    """

    species: int
    images: int
    queries: int
    size: int
    epochs: int
    evaluate_every: int

    def draw(self, seed: int) -> Dataset:
        """Return the data set; its images are drawn when they are read."""
        return plumage(
            self.species, self.images, test_per_species=self.queries, size=self.size, seed=seed
        )

    def config(self, bits: int, *, seed: int) -> RunConfig:
        """Return the settings of one run; those that matter are spelt out.

        How they were chosen, and what they reach: docs/results/demo.md.
        """
        settings: dict[str, dict[str, Any]] = {
            "data": {
                "store_size": self.size,
                "crop_size": self.size,
                "eval_size": self.size,
                "crop_scale": 1.0,
                "crop_ratio": 1.0,
                "flip": True,
            },
            "model": {
                "backbone": "test_resnet",  # timm's smallest ResNet
                "weights": "none",
                "levels": 3,
                "rho": [3.0, 2.0, 1.0],
                "embedding_dim": 256,
                "embedding_norm": "batch",
            },
            "quantizer": {"codebook_size": 256, "alpha": 4.0, "kappa": 5, "init": "kmeans"},
            "loss": {
                "tau": 0.25,
                "label_smoothing": 0.1,
                "embedding_weight": 1.0,
                "gamma": 0.2,
                "positive_margin": 0.2,
                "negative_margin": 1.0,
            },
            "training": {
                "epochs": self.epochs,
                "batch_size": 32,
                "optimizer": "adamw",
                "learning_rate": 5e-3,
                "head_rate_factor": 0.5,
                "weight_decay": 0.05,
                "warmup_epochs": 1.0,
                "final_rate": 0.01,
                "ema_decay": 0.98,
                "seed": seed,
                "precision": "float32",
                "images_on_device": "on",
                "evaluate_every": self.evaluate_every,
            },
        }
        return with_bits(parse(settings), bits)


FULL = Recipe(species=20, images=40, queries=15, size=64, epochs=30, evaluate_every=6)
QUICK = Recipe(species=4, images=6, queries=2, size=32, epochs=2, evaluate_every=1)
