"""Several processes that learn as one: who they are, what they exchange, who writes and reports.

    group = meet(Launch(rank=0, size=4))      or ALONE, for a single process
    group.join("auto")
    whole = group.gather(mine)

The loop is written once, for a group; a group of one exchanges nothing.
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


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher such as torchrun tells each of its processes."""

    rank: int  # of this process among all, from 0
    size: int  # processes in all, on all machines
    local_rank: int = 0  # of this process on its machine; its GPU
    local_size: int = 1  # processes on this machine


class PeerError(PhpqError):
    """Another process of the group failed; its own message has the reason."""


class Group:
    """The processes of one run, seen from one of them.

    Every method that exchanges something must be called by all of them, in the same order.

    Attributes:
        rank: Of this process, from 0.
        size: Processes in all.
        local_size: Processes on this machine, which share its cores and its memory.
        device: Where this process learns, and where exchanged tensors lie.
        sharded: Whether a module that is called now sees a part of the batch, not all of it.
    """

    def __init__(
        self,
        launch: Launch | None = None,
        *,
        device: torch.device | None = None,
        store: Store | None = None,
    ) -> None:
        self.launch = launch = launch or Launch(0, 1)
        self.rank, self.size = launch.rank, launch.size
        self.local_size = launch.local_size
        self.device = device or torch.device("cpu")
        self.sharded = self.size > 1
        self._meeting = store
        self._store: Store | None = None
        if store is not None:
            from torch._C._distributed_c10d import PrefixStore

            self._store = PrefixStore("phpq", store)  # apart from what torch keeps there

    def join(self, device: str = "auto") -> None:
        """Take a device and get ready to exchange tensors with the other processes.

        Args:
            device: "auto" and "cuda" take one GPU per process; "cpu" shares the cores.
        """
        self.device = _own_device(self.launch, device)
        if self.size > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend,
                store=self._meeting,
                rank=self.rank,
                world_size=self.size,
                timeout=COLLECTIVE_TIMEOUT,
            )

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

    def claim_failure(self) -> bool:
        """Announce that this process fails; True if none did before, so that it is to report."""
        if self._store is None:
            return True
        try:
            return bool(self._store.add("failures", 1) == 1)
        except RuntimeError:  # whoever kept the store is gone: it failed before
            return False

    def mark_reported(self) -> None:
        """Let the others end: the user has been told what went wrong."""
        if self._store is not None:
            self._store.set("reported", "yes")

    def wait_reported(self) -> None:
        """Wait a little for `mark_reported`: a launcher ends all once one has ended."""
        if self._store is not None:
            # It raises if nothing is reported in time, or if the store is gone.
            with suppress(RuntimeError):
                self._store.wait(["reported"], REPORT_TIMEOUT)

    def close(self) -> None:
        """Leave, once all have come to their end."""
        if self.size > 1:
            self.every(True)
            # A trainer is part of a cycle. Alive, it keeps the group's threads running until the
            # interpreter ends, which they do not survive: the process would abort.
            gc.collect()
            dist.destroy_process_group()


ALONE = Group()


def meet(launch: Launch) -> Group:
    """Find the other processes where the launcher says (MASTER_ADDR and MASTER_PORT).

    Nothing can be exchanged before `Group.join`, but one that fails can tell the others.
    """
    if launch.size == 1:
        return Group(launch)
    # Loaded when needed: some builds of torch have none of it, and train in one process.
    from torch.distributed.rendezvous import rendezvous

    try:
        met = rendezvous("env://", launch.rank, launch.size, timeout=COLLECTIVE_TIMEOUT)
        store, _, _ = next(met)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Process {launch.rank} of {launch.size} cannot meet the others: "
            f"{str(error).splitlines()[0]}. Start all of them by torchrun, which tells each where "
            "to connect (MASTER_ADDR, MASTER_PORT)."
        ) from error
    return Group(launch, store=store)


def _own_device(launch: Launch, name: str) -> torch.device:
    """Return the device of one process: the GPU of its local rank, or the CPU."""
    device = resolve_device(name)
    if launch.size == 1:
        return device
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"Device {name!r} does not serve several processes. Use 'cpu' or 'cuda', or start one "
            "process."
        )
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ConfigError(
            f"Device {name!r} is one GPU, but {launch.size} processes were started. Use 'cuda': "
            "each process takes its own."
        )
    there = torch.cuda.device_count()
    if launch.local_rank >= there:
        raise ConfigError(
            f"{launch.local_size} processes were started on this machine, which has {there} GPUs. "
            f"Start at most {there} (torchrun --nproc-per-node {there}), or use --device cpu."
        )
    own = torch.device("cuda", launch.local_rank)
    torch.cuda.set_device(own)
    return own
