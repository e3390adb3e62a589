"""Batch norm over the batch of all processes: each sees its part, all compute the same statistics.

torch's own SyncBatchNorm needs an accelerator (as of 2.15), and knows no losses over a batch that
is whole in every process. This one runs anywhere; its state is that of the module it replaces.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from phpq.errors import ConfigError
from phpq.training.distributed import Group

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncedBatchNorm(_BatchNorm):
    """A batch norm whose statistics are those of all processes while training.

    Where each process sees the whole batch (`Group.sharded` is False), and in evaluation, it is the
    plain batch norm.
    """

    def __init__(self, original: _BatchNorm, group: Group) -> None:
        super().__init__(
            original.num_features,
            eps=original.eps,
            momentum=original.momentum,
            affine=original.affine,
            track_running_stats=original.track_running_stats,
        )
        self.group = group
        # The very tensors: an optimizer or an average may hold them already.
        self._parameters = original._parameters
        self._buffers = original._buffers
        self._modules = original._modules  # timm's variants: dropout and activation
        self.train(original.training)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (n, C, ...), this process's part of the batch."""
        if not (self.training and self.group.sharded):
            return self._finish(super().forward(input))
        output, mean, var = cast(
            tuple[Tensor, Tensor, Tensor],
            _Normalise.apply(input, self.weight, self.bias, self.eps, self.group),
        )
        if self.track_running_stats:
            self._track(mean, var, input.numel() // input.shape[1] * self.group.size)
        return self._finish(output)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Update the running statistics as torch does: the variance is the unbiased one."""
        tracked = cast(Tensor, self.num_batches_tracked)
        tracked.add_(1)
        share: float | Tensor = 1 / tracked if self.momentum is None else self.momentum
        unbiased = var * (count / max(1, count - 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.copy_((1 - share) * running + share * value)

    def _finish(self, output: Tensor) -> Tensor:
        for name in ("drop", "act"):
            if name in self._modules:
                output = cast(nn.Module, self._modules[name])(output)
        return output

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (n, C, ...), got {tuple(input.shape)}")


class _Normalise(torch.autograd.Function):
    """Centre and scale by the statistics of the whole batch; the parts are of equal size.

    With x' = (x - mean) / deviation over N values per channel and g the gradient of the output,
    dx = weight / deviation (g - mean(g) - x' mean(g x')), the means taken over all processes.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = _wide(x)
        if _has_kernels(x):
            mean, var = torch.ops.aten.batch_norm_update_stats(wide, None, None, 0.0)
        else:
            var, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        # Means and variances of parts, not sums of squares: those lose digits.
        means, variances = group.gather(torch.stack([mean, var])[None]).unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        ctx.save_for_backward(x, weight, mean, var)
        ctx.group, ctx.eps = group, eps
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, eps=eps), mean, var

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, *unused: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        x, weight, mean, var = ctx.saved_tensors
        g, wide = _wide(grad), _wide(x)
        scale = (var + ctx.eps).rsqrt()
        factor = scale if weight is None else scale * weight
        if _has_kernels(x):  # what evaluation would hand back, and both sums, in one pass
            dx, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
                g, wide, weight, mean, var, mean, scale, False, ctx.eps, [True, True, True]
            )
        else:
            places, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
            of_bias = g.sum(places)
            of_weight = (g * (wide - mean.view(shape))).sum(places) * scale
            dx = g * factor.view(shape)
        sums = ctx.group.sum(torch.stack([of_bias, of_weight]))
        centre, slope = (sums / (x.numel() // x.shape[1] * ctx.group.size)).unbind(0)
        # - factor (mean(g) + x' mean(g x')), which is a batch norm of x itself.
        dx += F.batch_norm(wide, mean, var, -factor * slope, -factor * centre, eps=ctx.eps)
        # Of weight and bias each process gives its part: gradients are averaged afterwards.
        parts = (None, None) if weight is None else (of_weight, of_bias)
        return dx.to(x.dtype), *parts, None, None


def _has_kernels(x: Tensor) -> bool:
    """Say whether to use the kernels of torch's own batch norm: much faster on CPUs."""
    return x.device.type == "cpu"


def _wide(values: Tensor) -> Tensor:
    """Return values in float32 at least: sums of bfloat16 lose digits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def synchronise(module: nn.Module, group: Group) -> None:
    """Replace every batch norm within a module, in place; its state stays as it is."""
    if group.size == 1:
        return
    for name, child in module.named_children():
        if not isinstance(child, _BatchNorm):
            synchronise(child, group)
        # timm's BatchNormAct2d is a batch norm with two modules behind it.
        elif type(child) in PLAIN or set(dict(child.named_children())) == {"drop", "act"}:
            setattr(module, name, SyncedBatchNorm(child, group))
        else:
            raise ConfigError(
                f"The backbone's {type(child).__name__} cannot be shared by {group.size} "
                "processes. Choose another backbone (model.backbone), or train in one process."
            )
