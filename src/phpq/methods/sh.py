"""SH, spectral hashing (Weiss, Torralba, Fergus, NIPS 2008): waves along the principal axes.

Projections on the first `bits` axes are taken for uniform on [low, high]. The eigenfunctions of the
Laplacian there are cosines with k half waves, and those of the lowest frequencies are kept:
b = sign(sin(pi/2 + k pi (x - low) / (high - low))), k = 1, 2, ..., longer axes giving more of them.
One change: a value outside the range seen in training counts as its end, where the original wraps.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from phpq.codes import FloatArray
from phpq.methods.shallow import Numbers, ShallowHashing, check_rank, principal_axes
from phpq.model.method import MethodSetup, NoOptions

MARGIN = 1e-7  # by which the range is wider than what was seen


class SpectralHashing(ShallowHashing):
    """Signs of the smoothest eigenfunctions."""

    def __init__(self, setup: MethodSetup, options: NoOptions) -> None:
        super().__init__(setup, options)
        name = repr(setup.model.backbone)
        check_rank("sh", bits=self.bits, rank=self.feature_dim, of=name)
        self.register_buffer("axes", torch.zeros(self.bits, self.feature_dim))  # one for each bit
        self.register_buffer("low", torch.zeros(self.bits))
        self.register_buffer("width", torch.ones(self.bits))
        self.register_buffer("waves", torch.zeros(self.bits))  # half waves over the width

    def fit(self, features: FloatArray, seed: int) -> None:
        """Choose axis and frequency of every bit."""
        found = principal_axes(features, self.bits)
        check_rank("sh", bits=self.bits, rank=found.rank, of=f"{len(features)} images")
        values = features @ found.axes.T
        low = values.min(0) - MARGIN
        width = values.max(0) + MARGIN - low
        axis, waves = smoothest_modes(width, self.bits)
        self.store("axes", found.axes[axis])
        self.store("low", low[axis])
        self.store("width", width[axis])
        self.store("waves", waves)

    def scores(self, features: Tensor) -> Tensor:
        """Return the eigenfunctions, (N, bits) in [-1, 1]."""
        low, width = cast(Tensor, self.low), cast(Tensor, self.width)
        place = ((features @ cast(Tensor, self.axes).T - low) / width).clamp(0, 1)
        return (torch.pi * cast(Tensor, self.waves) * place).cos()


def smoothest_modes(width: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Choose the modes of lowest frequency.

    Args:
        width: (axes,) positive, the range of each axis.
        count: Modes wanted; the widest axis alone has as many.

    Returns:
        The axis and the half waves of each mode, two (count,) integer arrays.
    """
    most = np.ceil((count + 1) * width / width.max()).astype(int) - 1  # for each axis
    axis = np.repeat(np.arange(len(width)), most)
    waves = np.concatenate([np.arange(1, number + 1) for number in most])
    order = np.argsort(waves / width[axis], kind="stable")[:count]
    return axis[order], waves[order]
