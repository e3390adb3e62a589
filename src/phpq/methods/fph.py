"""FPH, Feature Pyramid Hashing (Yang et al., ICMR 2019): our reconstruction from its abstract.

Read: a vertical pyramid over high layers, a horizontal pyramid over low layers that keeps their
structure, both fused by consensus; average pooling per level; triplets. Ours:

    vertical v = FC(P4 gap(s4) + P3 gap(s3)),   P: to 256 numbers
    horizontal h = mean over s1, s2 of tanh(FC(2 x 2 grid of averages))
    code b = tanh(v + h)

with the loss of `ClassifiedHashing`. The abstract names no classification; it is ours, since
public reruns of triplets alone take a thousand epochs and more, which no method has here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.methods._hashing import ClassifiedHashing
from phpq.model.method import MethodSetup

WIDTH = 256  # of the vertical pyramid
GRID = 2  # cells per side that keep the structure of the low stages


class FPH(ClassifiedHashing):
    """Codes of high stages, corrected by the layout of low ones."""

    levels = 4
    sees_places = True
    descriptor_dim = WIDTH

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        first, second, third, fourth = self.backbone.channels
        self.vertical = nn.ModuleList(nn.Linear(width, WIDTH) for width in (third, fourth))
        cells = (width * GRID**2 for width in (first, second))
        self.horizontal = nn.ModuleList(nn.Linear(width, self.bits) for width in cells)

    def describe(self, pyramid: list[Tensor]) -> Tensor:
        """Add up the two high stages, (B, 256) float32."""
        pairs = zip(self.vertical, pyramid[2:], strict=True)
        return torch.stack([layer(m.float().mean((2, 3))) for layer, m in pairs]).sum(0)

    def structure(self, pyramid: list[Tensor]) -> Tensor:
        """Return the consensus of the two low stages, (B, bits) in [-1, 1]."""
        pairs = zip(self.horizontal, pyramid[:2], strict=True)
        cells = [layer(F.adaptive_avg_pool2d(m.float(), GRID).flatten(1)) for layer, m in pairs]
        return torch.stack(cells).tanh().mean(0)

    def outputs_of(self, pyramid: list[Tensor]) -> Tensor:
        """Return b (B, bits) float32 of all four stages."""
        return self.squash(self.hash(self.describe(pyramid)) + self.structure(pyramid))
