"""DSH (Liu et al., CVPR 2016): contrast pairs of codes, pulled towards +-1 by an L1 term.

For a similar pair |u_i - u_j|^2 / 2, for a dissimilar one max(0, 2 bits - |u_i - u_j|^2) / 2, plus
alpha (| |u_i| - 1 |_1 + | |u_j| - 1 |_1); all divided by the bits. Pairs are those of the batch;
the weight of similar ones is a setting: in a plain mean over two random images nearly all are
dissimilar, while equal weights left fewer than half as many distinct codes on pooled ImageNet
features of CUB at 16 bits. `phpq.recipes` has a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from phpq.config import RunConfig
from phpq.methods.hashing import (
    HashingMethod,
    balanced_mean,
    other_images,
    similar_pairs,
    squared_distances,
)
from phpq.model.method import check_option, read_options


@dataclass(frozen=True, slots=True)
class DSHOptions:
    """Numbers of the method.

    Attributes:
        alpha: Weight of the L1 distance of outputs from +-1.
        margin: Squared distance at which dissimilar pairs rest, in units of the bits.
        similar_share: Weight of the similar pairs' mean against that of the dissimilar ones.
    """

    alpha: float = 0.01
    margin: float = 2.0
    similar_share: float = 0.25

    def __post_init__(self) -> None:
        check_option("dsh", f"alpha={self.alpha}", "0 or more", good=self.alpha >= 0)
        check_option("dsh", f"margin={self.margin}", "above 0", good=self.margin > 0)
        share = self.similar_share
        check_option("dsh", f"similar_share={share}", "in (0, 1)", good=0 < share < 1)


class DSH(HashingMethod):
    """Codes that are equal within a class and half of the bits apart between classes."""

    terms = ("contrastive", "quantization")

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__(config, num_classes, load_weights=load_weights)
        self.options = read_options(DSHOptions, config.method)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Contrast all pairs of the batch; the L1 term counts both images of a pair."""
        similar = similar_pairs(labels)
        distances = squared_distances(outputs) / self.bits
        pairs = similar * distances + (1 - similar) * F.relu(self.options.margin - distances)
        contrastive = balanced_mean(
            pairs / 2,
            similar,
            other_images(labels),
            similar_share=self.options.similar_share,
        )
        gap = (outputs.abs() - 1).abs().mean()
        return contrastive + 2 * self.options.alpha * gap, contrastive, gap
