"""SH, spectral hashing (Weiss, Torralba, Fergus, NIPS 2008): waves along the principal axes.

Projections on the first `bits` axes are taken for uniform on [low, high]. The eigenfunctions of the
Laplacian there are cosines with k half waves, and those of the lowest frequencies are kept:
b = sign(sin(pi/2 + k pi (x - low) / (high - low))), k = 1, 2, ..., longer axes giving more of them.
One change: a value outside the range seen in training counts as its end, where the original wraps.
"""

import numpy as np
import torch
from torch import Tensor

from phpq.codes import FloatArray
from phpq.methods._shallow import Numbers, ShallowHashing, principal_axes
from phpq.model.method import MethodSetup

MARGIN = 1e-7  # by which the range is wider than what was seen


class SH(ShallowHashing):
    """Signs of the smoothest eigenfunctions."""

    axes: Tensor  # (bits, C): one for each bit, as all of these
    low: Tensor
    width: Tensor
    waves: Tensor  # half waves over the width

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.check_rank(self.code_dim, of=repr(setup.model.backbone))
        each = (self.bits,)
        self.reserve(axes=(self.bits, self.code_dim), low=each, width=each, waves=each)

    def fit(self, features: FloatArray, seed: int) -> None:
        """Choose axis and frequency of every bit."""
        found = principal_axes(features, self.bits)
        self.check_rank(found.rank, of=f"{len(features)} images")
        values = features @ found.axes.T
        low = values.min(0) - MARGIN
        width = values.max(0) + MARGIN - low
        axis, waves = smoothest_modes(width, self.bits)
        self.store(axes=found.axes[axis], low=low[axis], width=width[axis], waves=waves)

    def scores(self, features: Tensor) -> Tensor:
        """Return the eigenfunctions, (N, bits) in [-1, 1]."""
        place = ((features @ self.axes.T - self.low) / self.width).clamp(0, 1)
        return (torch.pi * self.waves * place).cos()


def smoothest_modes(width: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Return axis and half waves, two (count,) integer arrays, of the modes of lowest frequency.

    `width` is the positive range of each axis; the widest one alone has `count` modes.
    """
    most = np.ceil((count + 1) * width / width.max()).astype(int) - 1  # for each axis
    axis = np.repeat(np.arange(len(width)), most)
    waves = np.concatenate([np.arange(1, number + 1) for number in most])
    order = np.argsort(waves / width[axis], kind="stable")[:count]
    return axis[order], waves[order]
