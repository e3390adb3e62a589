"""What FPH, SRLH and CFH share: tanh codes that a classifier can read and that triplets order.

    L = CE(W b + c, y) + w_t mean max(0, |a-p|^2 - |a-n|^2 + m) / bits + w_q mean (|b| - 1)^2

W is free, so that 16 bits can tell 200 classes apart; outputs are centred by the hash layer, so
that no bit saturates before it has learned. In: b (B, bits). Out: the loss, its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from phpq.methods.hashing import HashingMethod, batch_triplet_loss, quantization_gap
from phpq.model.method import MethodSetup, option

MARGIN_BASE, MARGIN_SHARE = 4.0, 0.25  # of the triplets: 8 at 16 bits, 20 at 64, as in DTH


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """Numbers of the loss of a code."""

    classification: float = option(1.0, "0 or more")  # weight of the cross-entropy of the code
    smoothing: float = option(0.1, "in [0, 1)")  # share of its target spread over all classes
    triplet: float = option(1.0, "0 or more")  # w_t, weight of the triplets
    quantization: float = option(0.1, "0 or more")  # w_q, weight of the distance from signs


class ClassifiedHashing(HashingMethod):
    """A hashing method that learns by `CodeOptions`; a subclass says what it looks at."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "triplet", "quantization")
    option_type: ClassVar[type] = CodeOptions
    options: CodeOptions

    def __init__(self, setup: MethodSetup, options: CodeOptions) -> None:
        super().__init__(setup, options)
        self.classifier = nn.Linear(self.bits, setup.num_classes)

    def squash(self, outputs: Tensor) -> Tensor:
        """Bound the outputs by tanh."""
        return outputs.tanh()

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of b (B, bits), its classification, its triplets and its gap."""
        options = self.options
        classification = F.cross_entropy(
            self.classifier(outputs), labels, label_smoothing=options.smoothing
        )
        margin = MARGIN_BASE + MARGIN_SHARE * self.bits
        triplet = batch_triplet_loss(outputs, labels, margin) / self.bits
        gap = quantization_gap(outputs)
        total = (
            options.classification * classification
            + options.triplet * triplet
            + options.quantization * gap
        )
        return total, classification, triplet, gap
