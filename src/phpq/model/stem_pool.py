"""What follows the first convolution of a ResNet, in one: normalise, rectify, take maxima.

At that place the maps are the largest of the network. One after the other, each of the three writes
a map and reads it again, on the way back too; together they read the convolution's output, and
write its gradient, once. Both ways are operators of their own, so that a compiler leaves them as
they are: plain torch on a CPU, kernels in `stem_kernels` on CUDA.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, STRIDE, PADDING = 3, 2, 1  # of the windows
NOWHERE = SIDE * SIDE  # the tap of a window whose maximum is not above zero
_LARGEST = 2**31 - 1  # kernels count elements in 32 bits


class NormReluPool(nn.BatchNorm2d):
    """A batch norm that does what follows it too; its state is that of a batch norm."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return (B, C, h, w) of the maps (B, C, H, W): half of each side, rounded up."""
        if not self.training or maps.numel() > _LARGEST:
            return F.max_pool2d(F.relu(super().forward(maps)), SIDE, STRIDE, PADDING)
        with torch.no_grad():  # what they have to do with the maps is in the operator's gradient
            var, mean = torch.var_mean(maps.detach().to(self.weight.dtype), (0, 2, 3), correction=0)
            self._note(mean, var, maps.numel() // maps.shape[1])
            factor = torch.rsqrt(var + self.eps)
        pooled, _, _ = norm_relu_pool(maps, self.weight, self.bias, mean, factor)
        return cast(Tensor, pooled)

    def _note(self, mean: Tensor, var: Tensor, count: int) -> None:
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (count / max(1, count - 1)), self.momentum)


@torch.library.custom_op("phpq::norm_relu_pool", mutates_args=(), device_types="cpu")
def norm_relu_pool(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise, rectify, take maxima.

    Args:
        maps: (B, C, H, W).
        weight: (C,) of the normalisation, as all that follows.
        bias: (C,)
        mean: (C,) of the maps.
        factor: (C,) one over their deviation.

    Returns:
        The maxima (B, C, h, w); the values in `maps` that they came from; which of its nine places,
        row by row, each came from, as uint8.
    """
    scale = weight * factor
    shift = bias - mean * scale
    # The largest after scaling is the largest before, or the smallest where the scale is negative.
    signed = maps * torch.where(_per_channel(scale) < 0, -1, 1).to(maps.dtype)
    _, places = F.max_pool2d(signed, SIDE, STRIDE, PADDING, return_indices=True)
    best = maps.flatten(2).gather(2, places.flatten(2)).view_as(places)
    seen = F.relu(_per_channel(scale) * best + _per_channel(shift))
    pooled = seen.to(maps.dtype)
    height, width = pooled.shape[2:]
    row = places // maps.shape[3] - (STRIDE * torch.arange(height) - PADDING)[:, None]
    column = places % maps.shape[3] - (STRIDE * torch.arange(width) - PADDING)
    taps = torch.where(seen == 0, NOWHERE, SIDE * row + column).to(torch.uint8)
    return _laid_out(pooled), _laid_out(best), _laid_out(taps)


@torch.library.custom_op("phpq::norm_relu_pool_gradient", mutates_args=(), device_types="cpu")
def norm_relu_pool_gradient(
    slope: Tensor, taps: Tensor, maps: Tensor, scale: Tensor, along: Tensor, offset: Tensor
) -> Tensor:
    """Send a gradient back: `scale` x (all that a place sent) + `along` x maps + `offset`.

    Args:
        slope: (B, C, h, w) the gradient of the maxima.
        taps: (B, C, h, w) where they came from.
        maps: (B, C, H, W).
        scale: (C,)
        along: (C,)
        offset: (C,)

    Returns:
        The gradient of the maps.
    """
    batch, channels, height, width = maps.shape
    padded = (STRIDE * slope.shape[2] + PADDING, STRIDE * slope.shape[3] + PADDING)
    sums = torch.zeros(batch, channels, *padded, dtype=scale.dtype)
    for tap in range(SIDE * SIDE):
        row, column = divmod(tap, SIDE)
        part = sums[:, :, row::STRIDE, column::STRIDE][:, :, : slope.shape[2], : slope.shape[3]]
        part += torch.where(taps == tap, slope, 0)
    sums = sums[:, :, PADDING : PADDING + height, PADDING : PADDING + width]
    gradient = _per_channel(scale) * sums
    gradient += _per_channel(along) * maps + _per_channel(offset)
    return _laid_out(gradient.to(maps.dtype))


@norm_relu_pool.register_kernel("cuda")
def _on_cuda(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from phpq.model.stem_kernels import take_maxima

    scale = weight * factor
    return take_maxima(_laid_out(maps), scale, bias - mean * scale)


@norm_relu_pool_gradient.register_kernel("cuda")
def _gradient_on_cuda(
    slope: Tensor, taps: Tensor, maps: Tensor, scale: Tensor, along: Tensor, offset: Tensor
) -> Tensor:
    from phpq.model.stem_kernels import send_back

    return send_back(_laid_out(slope), taps, _laid_out(maps), scale, along, offset)


@norm_relu_pool.register_fake
def _shapes(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    pooled = empty_pooled(maps, maps.dtype)
    return pooled, torch.empty_like(pooled), torch.empty_like(pooled, dtype=torch.uint8)


@norm_relu_pool_gradient.register_fake
def _gradient_shape(
    slope: Tensor, taps: Tensor, maps: Tensor, scale: Tensor, along: Tensor, offset: Tensor
) -> Tensor:
    return torch.empty_like(maps, memory_format=torch.channels_last)


def empty_pooled(maps: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room for the maxima of maps (B, C, H, W)."""
    batch, channels, *sides = maps.shape
    shape = (batch, channels, *((side + 1) // STRIDE for side in sides))
    return torch.empty(shape, dtype=dtype, device=maps.device, memory_format=torch.channels_last)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    maps, weight, _, mean, factor = inputs
    _, best, taps = output
    ctx.save_for_backward(maps, weight, mean, factor, best, taps)


def _send_back(ctx: Any, slope: Tensor, *_unused: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of maps, weight and bias; mean and factor hang on the maps."""
    maps, weight, mean, factor, best, taps = ctx.saved_tensors
    count = maps.numel() // maps.shape[1]
    # A place that is no window's maximum gets nothing: windows are summed, not places.
    passed = torch.where(taps == NOWHERE, 0, slope).to(factor.dtype)
    distance = best.to(factor.dtype) - _per_channel(mean)
    of_bias = passed.sum((0, 2, 3))
    of_weight = (passed * distance).sum((0, 2, 3)) * factor
    scale = weight * factor
    along = -scale * factor * of_weight / count
    offset = -scale * of_bias / count - along * mean
    of_maps = norm_relu_pool_gradient(slope, taps, maps, scale, along, offset)
    return cast(Tensor, of_maps), of_weight, of_bias, None, None


norm_relu_pool.register_autograd(_send_back, setup_context=_keep)


def join_stem(pyramid: nn.Module) -> None:
    """Let the first batch norm of a pyramid of layers do what follows it, in place.

    Only where rectifying and maxima are what follows, and nobody asks for what is between.
    """
    layers = list(pyramid.named_children())
    returned = getattr(pyramid, "return_layers", {})
    for (name, norm), (act_name, act), (pool_name, pool) in zip(
        layers, layers[1:], layers[2:], strict=False
    ):
        if {name, act_name} & set(returned):
            continue
        if _is_plain_norm(norm) and type(act) is nn.ReLU and _is_known_pool(pool):
            norm.__class__ = NormReluPool
            setattr(pyramid, act_name, nn.Identity())
            setattr(pyramid, pool_name, nn.Identity())
            return


def _is_plain_norm(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.BatchNorm2d
        and layer.affine
        and layer.track_running_stats
        and layer.momentum is not None
    )


def _is_known_pool(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return settings == (SIDE, STRIDE, PADDING, 1)


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None]


def _laid_out(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)
