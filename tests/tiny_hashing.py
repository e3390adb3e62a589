"""Tiny methods of 16 bits, batches of vectors, training sets: what tests of methods share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from phpq.config import RunConfig
from phpq.model.method import Method, TrainingSet, build_method
from tiny_runs import CLASSES, tiny_config

Part = TypeVar("Part", bound=Method)

BITS = 16
SIXTEEN_BITS = (
    "quantizer.num_codebooks=2",
    "quantizer.codebook_size=256",
    "quantizer.kappa=256",
)


def hashing_config(method: str, *assignments: str) -> RunConfig:
    """Return the tiny settings for a method with codes of two bytes."""
    return tiny_config(f"method.name={method}", *SIXTEEN_BITS, *assignments)


def tiny_method(method: str, *assignments: str, seed: int = 0) -> Method:
    """Return a method with fixed random weights."""
    torch.manual_seed(seed)
    return build_method(hashing_config(method, *assignments), CLASSES)


def part_of(kind: type[Part], method: str, *assignments: str, classes: int = CLASSES) -> Part:
    """Return a class that methods share, alone, as if it were `method`."""
    whole = build_method(hashing_config(method, *assignments), classes)
    torch.manual_seed(0)
    return kind(whole.setup)


def random_batch(*, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return vectors (8, 16) that ask for gradients and labels (8,): 3, 2, 2 and 1 of a class."""
    generator = torch.Generator().manual_seed(seed)
    outputs = spread * torch.randn(8, BITS, generator=generator)
    return outputs.requires_grad_(), torch.tensor([0, 1, 0, 2, 1, 0, 3, 2])


def training_set(labels: Tensor, *, epochs: int = 10) -> TrainingSet:
    """Return a training set of labels only."""

    def unexpected(*_: object) -> Tensor:
        raise AssertionError("no images here")

    return TrainingSet(
        labels=labels,
        num_classes=CLASSES,
        seed=0,
        epochs=epochs,
        embed=unexpected,
        apply=unexpected,
    )


def triplets(labels: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield every anchor, another image of its class, and an image of another class."""
    numbers = range(len(labels))
    for anchor, positive, negative in product(numbers, numbers, numbers):
        if (
            anchor != positive
            and labels[anchor] == labels[positive]
            and labels[anchor] != labels[negative]
        ):
            yield anchor, positive, negative


def mean_by_kind(
    values: list[list[float]],
    labels: Tensor,
    others: Tensor | None = None,
    *,
    similar_share: float = 0.5,
) -> float:
    """Average the values of similar pairs and of dissimilar ones, then both; plain loops.

    Without `others` the pairs are those of one batch, and none of an image with itself.
    """
    kinds: dict[bool, list[float]] = {True: [], False: []}
    columns = labels if others is None else others
    for i, j in product(range(len(labels)), range(len(columns))):
        if others is not None or i != j:
            kinds[bool(labels[i] == columns[j])].append(values[i][j])
    alike, unlike = (sum(kind) / len(kind) for kind in kinds.values())
    return similar_share * alike + (1 - similar_share) * unlike


def squared_distance(first: Tensor, second: Tensor) -> float:
    """Return the squared distance of two vectors, by a loop."""
    pairs: Iterator[tuple[float, float]] = zip(first.tolist(), second.tolist(), strict=True)
    return sum((a - b) * (a - b) for a, b in pairs)


def inner_product(first: Tensor, second: Tensor) -> float:
    """Return the inner product of two vectors, by a loop."""
    pairs: Iterator[tuple[float, float]] = zip(first.tolist(), second.tolist(), strict=True)
    return sum(a * b for a, b in pairs)
