"""DPSH (Li, Wang and Kang, IJCAI 2016): the likelihood of pairs under inner products of codes.

With Theta_ij = a <u_i, u_j> for image i of the batch and j of the whole training set,
L = mean of log(1 + exp(Theta)) - s Theta, plus eta (sign(u) - u)^2, s = 1 for a shared class.
The u_j come from a buffer that each batch refreshes, as in the authors' code. What differs: a is
8 / bits, the authors' 1/2 at 16 bits, so that Theta does not grow with the bits; rows that no batch
has filled yet do not count; similar and dissimilar pairs weigh the same (one pair in 200 is similar
on CUB); the terms are means over pairs and bits.
"""

import torch
from torch import Tensor

from phpq.config import option
from phpq.methods._hashing import (
    HashingMethod,
    balanced_mean,
    pair_likelihood,
    quantization_gap,
    similar_pairs,
)
from phpq.model.method import TrainingSet


class DPSH(HashingMethod):
    """Codes whose inner products say how likely two images share a class."""

    terms = ("likelihood", "quantization")
    scale: float = option(8.0, "above 0")  # Theta of equal codes: a = scale / bits
    quantization: float = option(0.1, "0 or more")  # eta, weight of the mean (|u| - 1)^2
    outputs: Tensor  # (N, bits) float32: the last u of every training image, 0 before its first
    labels: Tensor  # (N,) int64

    def start(self, training: TrainingSet) -> None:
        """Allocate the outputs of all training images."""
        self.labels = training.labels
        self.outputs = torch.zeros(len(self.labels), self.bits, device=self.labels.device)

    def memory(self) -> dict[str, Tensor]:
        """Return the outputs of all training images."""
        return {"outputs": self.outputs}

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Refresh the batch's rows of the buffer, then compare the batch with all of it."""
        self.outputs.index_copy_(0, rows, outputs.detach())
        similar = similar_pairs(labels, self.labels)
        theta = self.scale / self.bits * (outputs @ self.outputs.T)
        filled = self.outputs.abs().amax(1) > 0
        others = rows[:, None] != torch.arange(len(self.labels), device=rows.device)[None, :]
        counted = (filled[None, :] & others).float()
        likelihood = balanced_mean(pair_likelihood(theta, similar), similar, counted)
        gap = quantization_gap(outputs)
        return likelihood + self.quantization * gap, likelihood, gap
