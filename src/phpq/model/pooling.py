"""A feature pyramid to one fused descriptor: generalized spatial pooling, then hybrid fusion.

In: maps (B, C_i, h_i, w_i), shallow first. Out: (B, C_last) float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6


def generalized_spatial_pooling(
    features: Tensor,
    rho: float,
    *,
    kind: Literal["gem", "paper"] = "gem",
    weights: Tensor | None = None,
) -> Tensor:
    """Pool every channel of (B, C, h, w) over space with focus factor rho: (B, C) float32.

    rho = 1 is average pooling, infinity max pooling. "gem" takes the mean inside the root, so that
    both limits hold; of places with `weights` (hw,), which add up to 1, if they are given. "paper"
    is the formula as printed, with 1/(hw) outside: it shrinks the result by (hw)^(1/rho - 1).
    """
    pixels = features.flatten(2).float()  # (B, C, hw)
    count = pixels.shape[2]
    if math.isinf(rho):
        return pixels.amax(2) if kind == "gem" else pixels.amax(2) / count
    if rho == 1:
        return _mean(pixels, weights)
    # The root has an infinite gradient at zero, and powers need positive bases.
    powered = pixels.clamp(min=EPSILON).pow(rho)
    if kind == "gem":
        return _mean(powered, weights).pow(1 / rho)
    return powered.sum(2).pow(1 / rho) / count


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    # Not a matrix product, which autocast would round to bfloat16.
    return values.mean(2) if weights is None else (values * weights).sum(2)


def average_cells(pyramid: Sequence[Tensor]) -> list[Tensor]:
    """Average each map (B, C, h, w) to one cell: (B, C, 1, 1) float32."""
    return [level.float().mean((2, 3), keepdim=True) for level in pyramid]


def centre_weights(
    height: int, width: int, deviation: float, *, device: torch.device | None = None
) -> Tensor:
    """Weigh places by a Gaussian around the centre of a map: (height * width,), adding up to 1.

    `deviation` is in halves of a side.
    """
    sides = [(2 * torch.arange(side, device=device) + 1) / side - 1 for side in (height, width)]
    rows, columns = (torch.exp(-side.square() / (2 * deviation**2)) for side in sides)
    weights = (rows[:, None] * columns).flatten()
    return weights / weights.sum()


def pooling_by_image(
    features: Tensor, rho: Tensor, *, kind: Literal["gem", "paper"] = "gem"
) -> Tensor:
    """Do as `generalized_spatial_pooling`, with a focus factor per image, differentiable in it.

    Values of (B, C, h, w) below 1e-6 count as 1e-6; rho (B,) float32 is finite and at least 1.
    """
    pixels = features.flatten(2).float()  # (B, C, hw)
    # In logarithms, so that powers do not overflow for any predicted rho.
    powered = rho[:, None, None] * pixels.clamp(min=EPSILON).log()
    total = powered.logsumexp(2)  # (B, C)
    count = pixels.shape[2]
    if kind == "gem":
        return ((total - math.log(count)) / rho[:, None]).exp()
    return (total / rho[:, None]).exp() / count


class FocusPredictor(nn.Module):
    """Predicts the focus factor of one level from the image: rho = max(1, start + w.u + b).

    u is the average descriptor of the level, scaled to unit length: gradients then depend neither
    on the number of channels nor on the scale of the maps. w and b start at zero, so that every
    image starts with `start`; no random number is drawn.
    """

    def __init__(self, channels: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return (B,) float32, at least 1, of maps (B, C, h, w)."""
        direction = F.normalize(features.flatten(2).float().mean(2), dim=1)
        rho = self.start + direction @ self.weight + self.bias
        # The gradient must pass at the limit itself, where rho = 1 starts.
        return torch.where(rho >= 1, rho, torch.ones_like(rho))


class PyramidHybridPooling(nn.Module):
    """Pool each level with its own focus and fuse the descriptors from shallow to deep.

    The focus of a level is a fixed number, or with mode="input" predicted from each image.
    h_1 = FC(f_1); h_i = FC(h_(i-1) + f_i); at the last level h = h_(i-1) + f_i, without an FC.
    """

    def __init__(
        self,
        channels: Sequence[int],
        rho: Sequence[float],
        *,
        kind: Literal["gem", "paper"] = "gem",
        mode: Literal["fixed", "input"] = "fixed",
    ) -> None:
        super().__init__()
        self.rho = tuple(rho)
        self.kind: Literal["gem", "paper"] = kind
        pairs = itertools.pairwise(channels)
        self.steps = nn.ModuleList(nn.Linear(here, above) for here, above in pairs)
        self.focus: nn.ModuleList | None = None
        if mode == "input":
            starts = zip(channels, self.rho, strict=True)
            self.focus = nn.ModuleList(FocusPredictor(count, start) for count, start in starts)

    def pool(self, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Pool each level of one batch: (B, C_i) float32, shallow first."""
        if self.focus is None:
            return [
                generalized_spatial_pooling(level, rho, kind=self.kind)
                for level, rho in zip(pyramid, self.rho, strict=True)
            ]
        return [
            pooling_by_image(level, predict(level), kind=self.kind)
            for level, predict in zip(pyramid, self.focus, strict=True)
        ]

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        """Fuse the maps of one batch into (B, C_last) float32."""
        pooled = self.pool(pyramid)
        fused = torch.zeros_like(pooled[0])
        for step, descriptor in zip(self.steps, pooled[:-1], strict=True):
            fused = cast(Tensor, step(fused + descriptor))
        return fused + pooled[-1]
