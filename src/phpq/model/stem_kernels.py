"""The kernels of `stem_pool`, in Triton, which comes with torch for CUDA.

All maps are channels last. A program takes a run of elements of the smaller map, and for each the
window or the 2 x 2 places that belong to it.
"""

# Triton has no types, and reads those of its kernels as its own.
# mypy: disable-error-code="import-untyped,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from phpq.model.stem_pool import empty_pooled

BLOCK = 1024


def take_maxima(maps: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return maxima of relu(scale x maps + shift), what they came from, and from which place.

    Args:
        maps: (B, C, H, W).
        scale: (C,) float32.
        shift: (C,) float32.
    """
    _, channels, *sides = maps.shape
    pooled, best = empty_pooled(maps, maps.dtype), empty_pooled(maps, maps.dtype)
    taps = empty_pooled(maps, torch.uint8)
    total = pooled.numel()
    _maxima[_grid(total)](
        maps,
        scale,
        shift,
        pooled,
        best,
        taps,
        total,
        *sides,
        *pooled.shape[2:],
        channels,
        BLOCK,
    )
    return pooled, best, taps


def send_back(
    slope: Tensor, taps: Tensor, maps: Tensor, scale: Tensor, along: Tensor, offset: Tensor
) -> Tensor:
    """Return scale x (what the windows send to each place) + along x maps + offset.

    Args:
        slope: (B, C, h, w).
        taps: (B, C, h, w) uint8.
        maps: (B, C, H, W).
        scale: (C,) float32.
        along: (C,) float32.
        offset: (C,) float32.
    """
    _, channels, *sides = maps.shape
    gradient = torch.empty_like(maps)
    total = slope.numel()
    _gradient[_grid(total)](
        slope,
        taps,
        maps,
        scale,
        along,
        offset,
        gradient,
        total,
        *sides,
        *slope.shape[2:],
        channels,
        BLOCK,
    )
    return gradient


def _grid(total: int) -> tuple[Any, ...]:
    return (triton.cdiv(total, BLOCK),)


@triton.jit
def _place(total, out_height, out_width, channels, block):
    """Return the elements of the smaller map; for each: is it one, channel, column, row, image."""
    element = tl.program_id(0) * block + tl.arange(0, block)
    channel = element % channels
    place = element // channels
    column = place % out_width
    place = place // out_width
    return element, element < total, channel, column, place % out_height, place // out_height


@triton.jit
def _maxima(  # noqa: PLR0913
    maps,
    scale,
    shift,
    pooled,
    best,
    taps,
    total,
    height: tl.constexpr,
    width: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
):
    element, known, channel, column, row, image = _place(
        total, out_height, out_width, channels, block
    )
    factor = tl.load(scale + channel)
    offset = tl.load(shift + channel)
    # The largest after scaling is the largest before, or the smallest where the scale is negative.
    sign = tl.where(factor < 0, -1.0, 1.0)
    largest = tl.full((block,), float("-inf"), tl.float32)
    tap = tl.full((block,), 4, tl.int32)
    for down in tl.static_range(3):
        for right in tl.static_range(3):
            y = 2 * row + down - 1
            x = 2 * column + right - 1
            inside = known & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            source = ((image * height + y) * width + x) * channels + channel
            # Outside is no number, and no number is larger than any.
            value = tl.load(maps + source, mask=inside, other=float("nan")).to(tl.float32) * sign
            better = value > largest
            largest = tl.where(better, value, largest)
            tap = tl.where(better, down * 3 + right, tap)
    origin = largest * sign
    seen = origin * factor + offset
    seen = tl.where(seen <= 0, 0.0, seen)  # what is no number stays none, and training sees it
    tap = tl.where(seen == 0, 9, tap)
    tl.store(pooled + element, seen.to(maps.dtype.element_ty), mask=known)
    tl.store(best + element, origin.to(maps.dtype.element_ty), mask=known)
    tl.store(taps + element, tap.to(tl.uint8), mask=known)


@triton.jit
def _sent(slope, taps, element, inside):
    """Return what windows send back, and to which of their places."""
    value = tl.load(slope + element, mask=inside, other=0).to(tl.float32)
    tap = tl.load(taps + element, mask=inside, other=9).to(tl.int32)
    return value, tap


@triton.jit
def _write(gradient, maps, sums, factor, along, offset, place, inside):  # noqa: PLR0913
    value = tl.load(maps + place, mask=inside, other=0).to(tl.float32)
    result = factor * sums + along * value + offset
    tl.store(gradient + place, result.to(maps.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(  # noqa: PLR0913
    slope,
    taps,
    maps,
    scale,
    along,
    offset,
    gradient,
    total,
    height: tl.constexpr,
    width: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
):
    element, known, channel, column, row, image = _place(
        total, out_height, out_width, channels, block
    )
    factor = tl.load(scale + channel)
    slant = tl.load(along + channel)
    base = tl.load(offset + channel)
    right = known & (column + 1 < out_width)
    below = known & (row + 1 < out_height)
    # Places 2 row, 2 row + 1 of columns 2 column, 2 column + 1 lie in this window and the next.
    here, tap = _sent(slope, taps, element, known)
    east, tap_east = _sent(slope, taps, element + channels, right)
    south, tap_south = _sent(slope, taps, element + out_width * channels, below)
    both, tap_both = _sent(slope, taps, element + (out_width + 1) * channels, right & below)
    even_even = tl.where(tap == 4, here, 0.0)
    even_odd = tl.where(tap == 5, here, 0.0) + tl.where(tap_east == 3, east, 0.0)
    odd_even = tl.where(tap == 7, here, 0.0) + tl.where(tap_south == 1, south, 0.0)
    odd_odd = tl.where(tap == 8, here, 0.0) + tl.where(tap_east == 6, east, 0.0)
    odd_odd += tl.where(tap_south == 2, south, 0.0) + tl.where(tap_both == 0, both, 0.0)
    place = ((image * height + 2 * row) * width + 2 * column) * channels + channel
    wide = known & (2 * column + 1 < width)
    high = known & (2 * row + 1 < height)
    down = width * channels
    _write(gradient, maps, even_even, factor, slant, base, place, known)
    _write(gradient, maps, even_odd, factor, slant, base, place + channels, wide)
    _write(gradient, maps, odd_even, factor, slant, base, place + down, high)
    _write(gradient, maps, odd_odd, factor, slant, base, place + down + channels, wide & high)
