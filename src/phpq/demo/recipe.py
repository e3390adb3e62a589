"""What the demo draws and how it learns: two sizes, each from a seed to birds and settings."""

from __future__ import annotations

from dataclasses import dataclass

from phpq.config import RunConfig
from phpq.data import Dataset, plumage
from phpq.recipes import drawn_settings, resolve_config

BITS = (16, 32)  # code lengths, each learned by a run of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """How much is drawn, and how long is learned."""

    species: int  # each run of four is a family of look-alikes
    images: int  # training images of a species, which are the gallery too
    queries: int  # test images of a species
    size: int  # side of an image, pixels
    epochs: int  # of each training
    evaluate_every: int  # epochs between two points of the MAP curve

    def draw(self, seed: int) -> Dataset:
        """Return the data set; its images are drawn when they are read."""
        return plumage(
            self.species, self.images, test_per_species=self.queries, size=self.size, seed=seed
        )

    def config(self, bits: int, *, seed: int) -> RunConfig:
        """Return the settings of one run; how they were chosen: docs/results/demo.md."""
        settings = (
            *drawn_settings(self.size),
            "model.embedding_dim=256",
            "training.ema_decay=0.98",
            f"training.epochs={self.epochs}",
            f"training.evaluate_every={self.evaluate_every}",
            f"training.seed={seed}",
        )
        return resolve_config(settings=settings, bits=bits)


FULL = DemoSize(species=20, images=40, queries=15, size=64, epochs=30, evaluate_every=6)
QUICK = DemoSize(species=4, images=6, queries=2, size=32, epochs=2, evaluate_every=1)
