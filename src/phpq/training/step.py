"""One optimisation step: pixels and labels in, losses out; as a CUDA graph where it can be.

The captured graph holds augmentation, forward, backward, the optimizer and the average: one launch
per step. The first steps of a run are real steps too, run eagerly; nothing is computed twice.

With several processes each extracts its part of the batch, and every one computes the loss of the
whole of it: terms over pairs, batch statistics and buffers are those of a single process.
"""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phpq.config import RunConfig
from phpq.data.augment import PARAMETERS, Views
from phpq.model.method import Method
from phpq.training.distributed import ALONE, Group
from phpq.training.optimizer import AveragedWeights

EAGER_STEPS = 8  # let cuDNN pick its algorithms and the compiler finish before the capture


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step leaves on the device."""

    losses: Tensor  # (1 + terms,) the whole loss, then the method's terms
    codes: Tensor  # (B, M) uint8: the hard codes of the batch, for the health of the codes


class LearningStep(nn.Module):
    """From this process's images to the loss of the whole batch, the same in every process."""

    def __init__(self, network: Method, precision: str, group: Group) -> None:
        super().__init__()
        self.network = network
        self.precision = precision
        self.group = group

    def forward(
        self, images: Tensor, labels: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Extract a part, gather all, and judge the whole.

        Args:
            images: (b, 3, H, W) in [0, 1], this process's part of the batch.
            labels: (b,) int64.
            rows: (b,) int64, the place of each image in the training set.

        Returns:
            The loss; (1 + terms,) the loss and its terms, without gradients; codes (B, M) uint8.
        """
        with self._autocast(images.device.type):
            extracted = self.network.extract(images)
        extracted = gather_batch(extracted, self.group)
        labels, rows = self.group.gather(labels), self.group.gather(rows)
        with self.group.whole_batch():
            learned = self.network.objective(extracted, labels, rows)
        # Detached: only the loss is followed back, and only through what it is made of.
        losses = torch.stack([learned.loss, *learned.parts]).detach()
        return learned.loss, losses, learned.codes

    def _autocast(self, device: str) -> AbstractContextManager[None]:
        enabled = self.precision == "bf16" or (self.precision == "auto" and device == "cuda")
        return torch.autocast(device, torch.bfloat16, enabled=enabled)


class TrainStep:
    """Runs one step: augment, forward, backward, update, average."""

    def __init__(
        self,
        network: Method,
        optimizer: torch.optim.Optimizer,
        average: AveragedWeights | None,
        config: RunConfig,
        *,
        group: Group = ALONE,
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.average = average
        self.config = config
        self.group = group
        self.views = Views(config.data)
        self.device = next(network.parameters()).device
        self.learning = LearningStep(network, config.training.precision, group)
        self._parallel: DistributedDataParallel | None = None
        self._fresh = True  # it is not known yet which parameters a step uses
        self.view = training_view
        if group.size == 1 and acceleration(config, self.device) == "full":
            _compile(network)
            self.view = torch.compile(training_view, dynamic=False)

    def __call__(
        self, pixels: Tensor, labels: Tensor, rows: Tensor, parameters: Tensor
    ) -> StepResult:
        """Learn from one batch, of which a process of several gives its part.

        Args:
            pixels: (B, 3, S, S) uint8.
            labels: (B,) int64.
            rows: (B,) int64, the place of each image in the training set.
            parameters: (B, 8) float32, the augmentation.
        """
        self.network.train()
        images = self.view(self.views, pixels, parameters)
        self.optimizer.zero_grad(set_to_none=True)
        learn: nn.Module = self.learning if self._fresh else (self._parallel or self.learning)
        loss, losses, codes = learn(images, labels, rows)
        torch.autograd.backward(loss)
        if self._fresh and self.group.size > 1:
            self._share_gradients()
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return StepResult(losses, codes)

    def restart(self) -> None:
        """Look again at what a step uses, since what it does has changed."""
        self._fresh = True

    def _share_gradients(self) -> None:
        """Average the gradients after the first step; later ones do so while they are computed.

        `DistributedDataParallel` has to know whether some parameters take no part, as codebooks
        before their first epoch. The first step shows it; control flow is the same everywhere.
        """
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        used = [p.grad for p in parameters if p.grad is not None]
        for gradient in used:
            gradient.copy_(self.group.sum(gradient) / self.group.size)
        unused = len(used) < len(parameters)
        if self._parallel is None or self._parallel.find_unused_parameters != unused:
            self._parallel = _in_parallel(self.learning, unused=unused)
        self._fresh = False


def training_view(views: Views, pixels: Tensor, parameters: Tensor) -> Tensor:
    """Return a batch as it is learned from, laid out as convolutions want it."""
    images = views.train(pixels, parameters)
    return images.contiguous(memory_format=torch.channels_last)


def _compile(network: Method) -> None:
    import torch._dynamo.config as dynamo

    # A process that trains one network after the other compiles the same code for every other kind
    # of backbone and batch; beyond this limit, 8 by default, torch goes on uncompiled.
    dynamo.recompile_limit = max(dynamo.recompile_limit, dynamo.accumulated_recompile_limit)
    for part in network.compiled_parts():
        part.compile(dynamic=False)


def _in_parallel(module: LearningStep, *, unused: bool) -> DistributedDataParallel:
    device = next(module.parameters()).device
    with warnings.catch_warnings():
        # The name of this option changes between the versions of torch that we support.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,  # all processes compute the same ones
            find_unused_parameters=unused,
        )


def gather_batch(extracted: Any, group: Group) -> Any:
    """Gather what `Method.extract` returned, a tensor (b, ...) or several, with its gradient."""
    if group.size == 1:
        return extracted
    if isinstance(extracted, Tensor):
        return cast(Tensor, _Gather.apply(extracted, group))
    if dataclasses.is_dataclass(extracted) and not isinstance(extracted, type):
        names = [field.name for field in dataclasses.fields(extracted)]
        values = {name: gather_batch(getattr(extracted, name), group) for name in names}
        return dataclasses.replace(extracted, **values)
    if isinstance(extracted, tuple | list):
        return type(extracted)(gather_batch(value, group) for value in extracted)
    raise TypeError(f"extract returned {type(extracted).__name__}; expected tensors")


class _Gather(torch.autograd.Function):
    """Concatenates the parts of all processes.

    Every process computes the same loss of the whole batch, hence the same gradient of it: the sum
    over processes of the gradients of one part is its own share, times their number. Nothing is
    exchanged on the way back, and the mean of gradients over processes is that of one process.
    """

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.length = group, len(mine)
        return group.gather(mine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        start = ctx.group.rank * ctx.length
        return grad[start : start + ctx.length] * ctx.group.size, None


class GraphedStep:
    """A `TrainStep` over resident pixels, replayed as one CUDA graph after its first steps."""

    def __init__(self, step: TrainStep, pixels: Tensor, labels: Tensor, batch_size: int) -> None:
        self.step = step
        self.pixels = pixels
        self.labels = labels
        device = pixels.device
        self.rows = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.parameters = torch.zeros(batch_size, PARAMETERS, device=device)
        books = step.config.quantizer.num_codebooks
        self.result = StepResult(
            torch.zeros(1 + len(step.network.terms), device=device),
            torch.zeros(batch_size, books, dtype=torch.uint8, device=device),
        )
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done = 0

    def __call__(self, rows: Tensor, parameters: Tensor) -> StepResult:
        """Learn from the images `rows` (B,) with augmentation (B, 8)."""
        self.rows.copy_(rows)
        self.parameters.copy_(parameters)
        if self.graph is None and self.done >= EAGER_STEPS:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._compute()
        if self.graph is not None:
            self.graph.replay()
        else:
            # Warm up on a side stream, as the capture does: its memory must not mix with others.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._compute()
            torch.cuda.current_stream().wait_stream(self.stream)
        self.done += 1
        return self.result

    def restart(self) -> None:
        """Forget the captured graph, since what a step does has changed."""
        self.graph = None
        self.done = 0

    def _compute(self) -> None:
        rows = self.rows
        result = self.step(self.pixels[rows], self.labels[rows], rows, self.parameters)
        self.result.losses.copy_(result.losses)
        self.result.codes.copy_(result.codes)


def acceleration(config: RunConfig, device: torch.device) -> str:
    """Resolve "auto": a CUDA graph on CUDA, plain steps elsewhere.

    Compiling too takes longer to start than it saves in one run on a small data set: "full" asks
    for it.
    """
    wanted = config.training.accelerate
    if device.type != "cuda":
        return "off"
    return "graph" if wanted == "auto" else wanted
