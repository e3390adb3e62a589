"""Training in several processes: rendezvous, collectives, and who writes and reports.

    group = Group(rank=0, size=4)      or ALONE, for a single process
    group.meet()
    group.join("auto")
    whole = group.gather(mine)

A group of one exchanges nothing. `synchronise` makes batch norms use the batch of all processes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from phpq.errors import ConfigError, PhpqError
from phpq.model.retrieval import resolve_device

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

# Long, since one process may evaluate or write while others wait. A process that dies is noticed at
# once by its launcher, or by its closed connection.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
REPORT_TIMEOUT = timedelta(seconds=5)  # for the first failing process to report its error
PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PeerError(PhpqError):
    """Another process of the group failed; its own message has the reason."""

    code = "peer"


@dataclass
class Group:
    """The processes of one run, seen from one of them, as launched by torchrun.

    Collective methods must be called by all processes, in the same order.
    """

    rank: int = 0  # of this process
    size: int = 1  # processes on all machines
    local_rank: int = 0  # of this process on its machine; the index of its GPU
    local_size: int = 1  # processes on this machine, which share its cores and its memory

    def __post_init__(self) -> None:
        self.device = torch.device("cpu")  # of exchanged tensors
        self.sharded = self.size > 1  # whether modules see a part of the batch, not the whole
        self._store: Store | None = None

    def meet(self) -> None:
        """Find the other processes at MASTER_ADDR and MASTER_PORT, set by the launcher.

        Tensors cannot be exchanged before `join`, but failures can be reported.
        """
        # Imported here: some builds of torch lack it, and train in one process.
        from torch.distributed.rendezvous import rendezvous

        try:
            met = rendezvous("env://", self.rank, self.size, timeout=COLLECTIVE_TIMEOUT)
            self._store, _, _ = next(met)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"Process {self.rank} of {self.size} cannot meet the others: "
                f"{str(error).splitlines()[0]}. Start all of them by torchrun, which tells each "
                "where to connect (MASTER_ADDR, MASTER_PORT)."
            ) from error

    def join(self, device: str = "auto") -> None:
        """Initialise the exchange of tensors; "auto" and "cuda" take one GPU per process."""
        self.device = self._own_device(device)
        if self.size > 1:
            dist.init_process_group(
                "nccl" if self.device.type == "cuda" else "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=COLLECTIVE_TIMEOUT,
            )

    def _own_device(self, name: str) -> torch.device:
        """Return the device of this process: the GPU of its local rank, or the CPU."""
        device = resolve_device(name)
        if self.size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise ConfigError(
                f"Device {name!r} does not serve several processes. Use 'cpu' or 'cuda', or start "
                "one process."
            )
        if device.index is not None:
            raise ConfigError(
                f"Device {name!r} is one GPU, but {self.size} processes were started. Use 'cuda': "
                "each process takes its own."
            )
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise ConfigError(
                f"{self.local_size} processes were started on this machine, which has {count} "
                f"GPUs. Start at most {count} (torchrun --nproc-per-node {count}), or use --device "
                "cpu."
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports to the user."""
        return self.rank == 0

    def batch_slice(self, batch_size: int) -> slice:
        """Return this process's slice of every batch, whose size must be divisible by all."""
        if batch_size % self.size:
            raise ConfigError(
                f"training.batch_size={batch_size} cannot be shared equally by {self.size} "
                f"processes. It is the batch of all of them together: make it a multiple of "
                f"{self.size}, or start another number of processes."
            )
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def rows(self, count: int) -> slice:
        """Return this process's share of `count` rows, at least 1, for `gather_rows`."""
        share = -(-count // self.size)
        # With fewer rows than processes the last processes repeat a row, dropped by `gather_rows`.
        start = min(self.rank * share, count - 1)
        return slice(start, min(start + share, count))

    def gather(self, mine: Tensor) -> Tensor:
        """Concatenate the (n, ...) tensors of all processes, of equal shape, by rank."""
        if self.size == 1:
            return mine
        sent = mine.detach().to(self.device).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent)
        return torch.cat(parts).to(mine.device)

    def gather_rows(self, mine: Tensor, count: int) -> Tensor:
        """Concatenate the results of all processes for their `rows(count)`: (count, ...)."""
        if self.size == 1:
            return mine
        missing = -(-count // self.size) - len(mine)
        filled = torch.cat([mine, mine[-1:].expand(missing, *mine.shape[1:])])
        # Repeated and padded rows come after the first `count`.
        return self.gather(filled)[:count]

    def gather_objects(self, mine: T) -> list[T]:
        """Return a small object of each process, by rank."""
        if self.size == 1:
            return [mine]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, mine)
        return every

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of equally shaped tensors over all processes."""
        if self.size == 1:
            return values
        total = values.detach().to(self.device, copy=True).contiguous()
        dist.all_reduce(total)
        return total.to(values.device)

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Replace tensors, in place, by those of the process `source`."""
        if self.size == 1:
            return
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous()
            dist.broadcast(sent, source)
            if self.rank != source:
                tensor.copy_(sent)

    def every(self, flag: bool) -> bool:
        """Tell whether a flag is set in all processes; waits for all of them."""
        return self.sum(torch.tensor([0 if flag else 1], device=self.device)).item() == 0

    def on_first(self, action: Callable[[], object]) -> None:
        """Run an action in the first process; if it fails, all processes fail."""
        failure: PhpqError | OSError | None = None
        if self.first:
            try:
                action()
            except (PhpqError, OSError) as error:
                failure = error
        if self.every(failure is None):
            return
        raise failure or PeerError("The first process failed; its own message has the reason.")

    @contextmanager
    def whole_batch(self) -> Iterator[None]:
        """Tell modules that they now see the whole batch in every process, as in a loss."""
        before, self.sharded = self.sharded, False
        try:
            yield
        finally:
            self.sharded = before

    def report_once(self, report: Callable[[], None] | None) -> None:
        """Run `report` in the first process that fails; the others wait until it is done.

        They wait, `REPORT_TIMEOUT` at most, because a launcher ends all processes once one has
        ended. None only waits.
        """
        assert self._store is not None  # there are several processes
        # The store raises after the timeout, or if the process that holds it is gone.
        with suppress(RuntimeError):
            if report and self._store.add("phpq/failures", 1) == 1:
                report()
                self._store.set("phpq/reported", "yes")
            else:
                self._store.wait(["phpq/reported"], REPORT_TIMEOUT)

    def close(self) -> None:
        """Leave the group, once all processes have come here."""
        if self.size > 1:
            self.every(True)
            # A trainer is part of a reference cycle. Alive, it would keep the group's threads
            # running until the interpreter exits, and the process would abort.
            gc.collect()
            dist.destroy_process_group()


ALONE = Group()


class SyncedBatchNorm(_BatchNorm):
    """A batch norm with the statistics of all processes while training.

    torch's own needs an accelerator (as of 2.15), and cannot see a batch that is whole in every
    process. There (`Group.sharded` is False) and in evaluation this one is a plain batch norm. Its
    state is that of the module it replaces.
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
        # The same tensors: an optimizer or an average may hold them already.
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
        wide = _at_least_float32(x)
        if _has_kernels(x):
            mean, var = torch.ops.aten.batch_norm_update_stats(wide, None, None, 0.0)
        else:
            var, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        # Means and variances of the parts: sums of squares would lose digits.
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
        g, wide = _at_least_float32(grad), _at_least_float32(x)
        scale = (var + ctx.eps).rsqrt()
        factor = scale if weight is None else scale * weight
        if _has_kernels(x):  # the gradient of evaluation mode, and both sums, in one pass
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
        # Each process returns its part for weight and bias: gradients are averaged afterwards.
        parts = (None, None) if weight is None else (of_weight, of_bias)
        return dx.to(x.dtype), *parts, None, None


def _has_kernels(x: Tensor) -> bool:
    """Tell whether torch's own batch norm kernels are used: much faster on CPUs."""
    return x.device.type == "cpu"


def _at_least_float32(values: Tensor) -> Tensor:
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
