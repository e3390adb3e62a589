"""The first convolution of a ResNet, folded: the same sums, arranged for matrix units.

Seven by seven places of three channels, every second place: hardware that multiplies eight channels
at a time wastes most of that. Squares of 2 x 2 pixels as twelve channels, four by four of them,
hold the same products and one row and column of zeros.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

FOLD = 2  # pixels a side of what becomes one place; the stride
CHANNELS = 16  # 3 x 2 x 2, and zeros up to what kernels take without copying


class FoldedStem(nn.Conv2d):
    """A 7 x 7 convolution of three channels with stride 2; its weights are stored as they were."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, C, H / 2, W / 2) of (B, 3, H, W); odd sides take the plain way."""
        if images.shape[2] % FOLD or images.shape[3] % FOLD:
            return super().forward(images)
        places = F.pixel_unshuffle(images, FOLD)
        missing = CHANNELS - places.shape[1]
        # Output y reads rows 2y - 3 to 2y + 3; with a row of zeros before them, four whole places.
        places = F.pad(places, (2, 1, 2, 1, 0, missing))
        return F.conv2d(places, F.pad(folded_weight(self.weight), (0, 0, 0, 0, 0, missing)))


def folded_weight(weight: Tensor) -> Tensor:
    """Return (C, 12, 4, 4) of the weight (C, 3, 7, 7)."""
    return F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), FOLD)


def fold_stem(backbone: nn.Module) -> None:
    """Fold every first convolution that can be, in place."""
    for module in backbone.modules():
        if type(module) is nn.Conv2d and _can_be_folded(module):
            module.__class__ = FoldedStem


def _can_be_folded(conv: nn.Conv2d) -> bool:
    shape = (conv.in_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    plain = conv.groups == 1 and conv.padding_mode == "zeros" and conv.bias is None
    return plain and shape == (3, (7, 7), (2, 2), (3, 3), (1, 1))
