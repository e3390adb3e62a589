"""DSH (Liu et al., CVPR 2016): contrast pairs of codes, pulled towards +-1 by an L1 term.

For a similar pair |u_i - u_j|^2 / 2, for a dissimilar one max(0, 2 bits - |u_i - u_j|^2) / 2, plus
alpha (| |u_i| - 1 |_1 + | |u_j| - 1 |_1); all divided by the bits. Pairs are those of the batch;
the weight of similar ones is a setting: in a plain mean over two random images nearly all are
dissimilar, while equal weights leave few distinct codes.
"""

import torch.nn.functional as F
from torch import Tensor

from phpq.config import option
from phpq.methods._hashing import HashingMethod, balanced_mean, other_images, similar_pairs
from phpq.model.network import squared_distances


class DSH(HashingMethod):
    """Codes that are equal within a class and half of the bits apart between classes."""

    terms = ("contrastive", "quantization")
    alpha: float = option(0.01, "0 or more")  # weight of the L1 distance of outputs from +-1
    margin: float = option(2.0, "above 0")  # squared distance of dissimilar pairs, in bits
    similar_share: float = option(0.25, "in (0, 1)")  # weight of the similar pairs' mean

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Contrast all pairs of the batch; the L1 term counts both images of a pair."""
        similar = similar_pairs(labels)
        distances = squared_distances(outputs) / self.bits
        pairs = similar * distances + (1 - similar) * F.relu(self.margin - distances)
        contrastive = balanced_mean(
            pairs / 2, similar, other_images(labels), similar_share=self.similar_share
        )
        gap = (outputs.abs() - 1).abs().mean()
        return contrastive + 2 * self.alpha * gap, contrastive, gap
