"""Several processes that learn as one: who they are, what they exchange, who writes and reports.

    group = Group(rank=0, size=4)      or ALONE, for a single process
    group.meet()
    group.join("auto")
    whole = group.gather(mine)

A group of one exchanges nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from phpq.errors import ConfigError, PhpqError
from phpq.model.retrieval import resolve_device

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

# One process may evaluate or write while the others wait. One that dies is noticed at once by its
# launcher, or by its closed connection.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
REPORT_TIMEOUT = timedelta(seconds=5)  # for the first that failed to tell the user


class PeerError(PhpqError):
    """Another process of the group failed; its own message has the reason."""


@dataclass
class Group:
    """The processes of one run, seen from one of them, as a launcher such as torchrun tells it.

    Every method that exchanges something must be called by all of them, in the same order.
    """

    rank: int = 0  # of this process among all
    size: int = 1  # processes in all, on all machines
    local_rank: int = 0  # of this process on its machine; its GPU
    local_size: int = 1  # processes on this machine, which share its cores and its memory

    def __post_init__(self) -> None:
        self.device = torch.device("cpu")  # where exchanged tensors lie
        self.sharded = self.size > 1  # a module that is called now sees a part of the batch
        self._store: Store | None = None

    def meet(self) -> None:
        """Find the other processes where the launcher says (MASTER_ADDR and MASTER_PORT).

        Nothing can be exchanged before `join`, but one that fails can tell the others.
        """
        # Loaded when needed: some builds of torch have none of it, and train in one process.
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
        """Get ready to exchange tensors; "auto" and "cuda" take a GPU per process."""
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
        """Return the device of one process: the GPU of its local rank, or the CPU."""
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
        there = torch.cuda.device_count()
        if self.local_rank >= there:
            raise ConfigError(
                f"{self.local_size} processes were started on this machine, which has {there} "
                f"GPUs. Start at most {there} (torchrun --nproc-per-node {there}), or use --device "
                "cpu."
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports to the user."""
        return self.rank == 0

    def part(self, batch_size: int) -> slice:
        """Return this process's images of every batch, which must be divisible among all."""
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
        # With fewer rows than processes the last ones repeat a row, which is dropped again.
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
        """Concatenate what each process made of its `rows(count)`: (count, ...)."""
        if self.size == 1:
            return mine
        missing = -(-count // self.size) - len(mine)
        filled = torch.cat([mine, mine[-1:].expand(missing, *mine.shape[1:])])
        # A last process that repeats a row stands beyond `count`; so does all that was filled.
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
        """Tell whether a flag is set in all processes; none goes on before all have asked."""
        return self.sum(torch.tensor([0 if flag else 1], device=self.device)).item() == 0

    def on_first(self, action: Callable[[], object]) -> None:
        """Run an action in the first process; where it fails, all fail."""
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
        """Tell modules that they see the whole batch in every process, as in a loss."""
        before, self.sharded = self.sharded, False
        try:
            yield
        finally:
            self.sharded = before

    def report_once(self, report: Callable[[], None] | None) -> None:
        """Run `report` in the first process that fails; the others wait a little until it has.

        They wait because a launcher ends all once one has ended. None only waits.
        """
        assert self._store is not None  # there are several processes
        # The store raises if nothing is reported in time, or if whoever kept it is gone.
        with suppress(RuntimeError):
            if report and self._store.add("phpq/failures", 1) == 1:
                report()
                self._store.set("phpq/reported", "yes")
            else:
                self._store.wait(["phpq/reported"], REPORT_TIMEOUT)

    def close(self) -> None:
        """Leave, once all have come to their end."""
        if self.size > 1:
            self.every(True)
            # A trainer is part of a cycle. Alive, it keeps the group's threads running until the
            # interpreter ends, which they do not survive: the process would abort.
            gc.collect()
            dist.destroy_process_group()


ALONE = Group()
