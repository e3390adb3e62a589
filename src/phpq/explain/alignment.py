"""Where the cells of a feature map lie in the image: a backbone in, an offset per level out.

Padded strides move a cell: cell i of a ResNet with stride 32 looks at pixel 32 i, not at the middle
of the 32 pixels from there on. Drawn as if it did, a heat map is half a cell off. Paths through a
network may differ in this, so it is measured.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    from phpq.model.backbone import Backbone

_PROBE_SIDE = 256  # pixels: a cell in the middle must be far from the borders
_PROBES = 4
_MEASURED: weakref.WeakKeyDictionary[Backbone, tuple[float, ...]] = weakref.WeakKeyDictionary()


def cell_offsets(backbone: Backbone) -> tuple[float, ...]:
    """Measure where a cell looks, as a share of its stride: 0.5 is the middle, 0 the near edge.

    From the slopes of the cell in the middle by the pixels of noise: an offset in [0, 1] for each
    level, shallow first. The backbone is in evaluation mode. The answer is kept as long as it
    lives; the first call takes as long as embedding some ten images.
    """
    if backbone not in _MEASURED:
        _MEASURED[backbone] = _measure(backbone)
    return _MEASURED[backbone]


def lay_out(values: FloatArray, size: tuple[int, int], *, offset: float) -> FloatArray:
    """Draw the cells of a map (h, w) over the image that it was made from, linear in between.

    `size` is (height, width) of the result; an offset of 0.5 is what resizing an image does.
    """
    rows = _weights(values.shape[0], size[0], offset)
    columns = _weights(values.shape[1], size[1], offset)
    drawn: FloatArray = (rows @ values.astype(np.float64) @ columns.T).astype(np.float32)
    return drawn


def _weights(cells: int, pixels: int, offset: float) -> NDArray[np.float64]:
    """Return (pixels, cells) float64 whose rows add up to 1."""
    # In units of cells; cell i is drawn at i + offset, and beyond the outer ones it is flat.
    places = (np.arange(pixels) + 0.5) * cells / pixels - offset
    places = places.clip(0, cells - 1)
    low = np.minimum(places.astype(np.int64), max(cells - 2, 0))
    weights = np.zeros((pixels, cells))
    weights[np.arange(pixels), low] = 1 - (places - low)
    weights[np.arange(pixels), np.minimum(low + 1, cells - 1)] += places - low
    return weights


def _measure(backbone: Backbone) -> tuple[float, ...]:
    import torch

    some = next(backbone.parameters())
    generator = torch.Generator().manual_seed(0)  # the global one stays as it is
    with torch.inference_mode(False), torch.enable_grad():
        noise = torch.rand(_PROBES, 3, _PROBE_SIDE, _PROBE_SIDE, generator=generator)
        pixels = noise.to(some.device).requires_grad_()
        return tuple(_offset(pixels, level) for level in backbone(pixels))


def _offset(pixels: Tensor, level: Tensor) -> float:
    import torch

    cell = level.shape[-1] // 2
    stride = pixels.shape[-1] / level.shape[-1]
    target = level[:, :, level.shape[-2] // 2, cell].abs().sum()
    (slopes,) = torch.autograd.grad(target, pixels, retain_graph=True)
    # Squared: the middle of what it looks at most, not of the wide rim that it hardly sees.
    weights = slopes.double().square().sum(dim=1)  # (B, H, W)
    places = torch.arange(pixels.shape[-1], device=pixels.device, dtype=torch.float64)
    total = weights.sum(dim=(1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
    # Backbones treat rows and columns alike: both measure the same.
    seen = (weights.sum(dim=2) @ places + weights.sum(dim=1) @ places) / (2 * total)
    return float(np.clip((float(seen.mean()) + 0.5) / stride - cell, 0.0, 1.0))
