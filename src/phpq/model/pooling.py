"""A feature pyramid to one fused descriptor: generalized spatial pooling, then hybrid fusion.

In: maps (B, C_i, h_i, w_i), shallow first. Out: (B, C_last) float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

EPSILON = 1e-6


def generalized_spatial_pooling(
    features: Tensor, rho: float, *, kind: Literal["gem", "paper"] = "gem"
) -> Tensor:
    """Pool every channel over space with focus factor rho.

    Args:
        features: (B, C, h, w), any float type; computed in float32.
        rho: 1 is average pooling, infinity max pooling.
        kind: "gem" takes the mean inside the root, so that both limits hold. "paper" is the formula
            as printed, with 1/(hw) outside: it shrinks the result by (hw)^(1/rho - 1).

    Returns:
        (B, C) float32.
    """
    pixels = features.flatten(2).float()  # (B, C, hw)
    count = pixels.shape[2]
    if math.isinf(rho):
        pooled = pixels.amax(2)
        return pooled if kind == "gem" else pooled / count
    if rho == 1:
        return pixels.mean(2)
    # The root has an infinite slope at zero, and powers need positive bases.
    powered = pixels.clamp(min=EPSILON).pow(rho)
    if kind == "gem":
        return powered.mean(2).pow(1 / rho)
    return powered.sum(2).pow(1 / rho) / count


class PyramidHybridPooling(nn.Module):
    """Pool each level with its own focus and fuse the descriptors from shallow to deep.

    h_1 = FC(f_1); h_i = FC(h_(i-1) + f_i); at the last level h = h_(i-1) + f_i, without an FC.
    """

    def __init__(
        self,
        channels: Sequence[int],
        rho: Sequence[float],
        *,
        kind: Literal["gem", "paper"] = "gem",
    ) -> None:
        super().__init__()
        self.rho = tuple(rho)
        self.kind: Literal["gem", "paper"] = kind
        pairs = itertools.pairwise(channels)
        self.steps = nn.ModuleList(nn.Linear(here, above) for here, above in pairs)

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        """Fuse the maps of one batch into (B, C_last) float32."""
        pooled = [
            generalized_spatial_pooling(level, rho, kind=self.kind)
            for level, rho in zip(pyramid, self.rho, strict=True)
        ]
        carried = torch.zeros_like(pooled[0])
        for step, descriptor in zip(self.steps, pooled[:-1], strict=True):
            carried = cast(Tensor, step(carried + descriptor))
        return carried + pooled[-1]
