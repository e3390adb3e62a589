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

from phpq.config import RunConfig
from phpq.methods.hashing import HashingMethod, batch_triplet_loss, quantization_gap
from phpq.model.method import check_option, read_options

MARGIN_BASE, MARGIN_SHARE = 4.0, 0.25  # of the triplets: 8 at 16 bits, 20 at 64, as in DTH


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """Numbers of the loss of a code.

    Attributes:
        classification: Weight of the cross-entropy of the code.
        smoothing: Share of its target that is spread over all classes.
        triplet: w_t, weight of the triplets.
        quantization: w_q, weight of the distance of b from its signs.
    """

    classification: float = 1.0
    smoothing: float = 0.1
    triplet: float = 1.0
    quantization: float = 0.1

    method: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name in ("classification", "triplet", "quantization"):
            value = getattr(self, name)
            check_option(self.method, f"{name}={value}", "0 or more", good=value >= 0)
        seen = f"smoothing={self.smoothing}"
        check_option(self.method, seen, "in [0, 1)", good=0 <= self.smoothing < 1)


class ClassifiedHashing(HashingMethod):
    """A hashing method that learns by `CodeOptions`; a subclass says what it looks at."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "triplet", "quantization")
    option_type: type[CodeOptions] = CodeOptions

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__(config, num_classes, load_weights=load_weights)
        self.options = read_options(self.option_type, config.method)
        self.classifier = nn.Linear(self.bits, num_classes)

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
