"""The two terms of PHPQ's objective; plain tensors in, a scalar out; no data-dependent shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from phpq.config import LossConfig

if TYPE_CHECKING:
    from phpq.model.network import RetrievalOutput

# Keeps the root's slope finite where two reconstructions are equal, which hard codes make common.
EPSILON = 1e-8


class LossTerms(NamedTuple):
    """The objective and its parts, each a scalar tensor."""

    total: Tensor
    classification: Tensor
    contrastive: Tensor


def phpq_loss(
    output: RetrievalOutput, labels: Tensor, config: LossConfig, num_codebooks: int
) -> LossTerms:
    """Combine both terms of a batch with labels (B,) int64 as the config weighs them.

    Margins of the config are in units of sqrt(M), the number of codebooks.
    """
    classification = classification_loss(output.logits, labels, config.tau, config.label_smoothing)
    contrastive = contrastive_loss(
        output.reconstruction,
        labels,
        positive_margin=config.positive_margin * num_codebooks**0.5,
        negative_margin=config.negative_margin * num_codebooks**0.5,
        positive_mean=config.positive_mean,
    )
    total = classification + config.gamma * contrastive
    if config.embedding_weight:
        total = total + config.embedding_weight * classification_loss(
            output.embedding_logits, labels, config.tau, config.label_smoothing
        )
    return LossTerms(total, classification, contrastive)


def classification_loss(
    logits: Tensor, labels: Tensor, tau: float, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of (B, classes) logits divided by the temperature tau."""
    return F.cross_entropy(logits / tau, labels, label_smoothing=smoothing)


def contrastive_loss(
    reconstructions: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_mean: Literal["true", "paper"] = "true",
) -> Tensor:
    """Pull a class together and push it from the rest of the batch, by hinges on mean distances.

    For each class c of the batch: max(d+ - m+, 0) + max(m- - d-, 0), where d+ is the mean distance
    inside the class and d- that from the class to all others; then the mean over the classes.

    A class with one image has no d+; a batch of one class has no d-.

    Args:
        reconstructions: (B, D) float32.
        labels: (B,) int64.
        positive_margin: m+.
        negative_margin: m-.
        positive_mean: "true" divides d+ by the n(n-1) terms that it sums, "paper" by n^2.
    """
    same = (labels[:, None] == labels[None, :]).float()  # (B, B)
    distances = _pairwise_distances(reconstructions)
    size = same.sum(1)  # images of the class of each row
    others = len(labels) - size
    # Row sums, then summed over the rows of the same class: every row holds its class's total.
    inside = same @ (same * distances).sum(1)
    outside = same @ ((1 - same) * distances).sum(1)
    pairs = size * (size - 1) if positive_mean == "true" else size * size
    positive = inside / pairs.clamp(min=1)
    negative = outside / (size * others).clamp(min=1)
    hinge = F.relu(positive - positive_margin) * (size > 1)
    hinge = hinge + F.relu(negative_margin - negative) * (others > 0)
    weight = 1 / size  # rows of one class together weigh one
    return (weight * hinge).sum() / weight.sum()


def _pairwise_distances(points: Tensor) -> Tensor:
    """Euclidean distances (B, B) with zeros on the diagonal and a finite gradient everywhere."""
    square = points.square().sum(1)
    squared = (square[:, None] + square[None, :] - 2 * points @ points.T).clamp(min=0)
    off_diagonal = 1 - torch.eye(len(points), device=points.device)
    return (squared + EPSILON).sqrt() * off_diagonal
