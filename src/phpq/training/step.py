"""One optimisation step: pixels and labels in, losses out; on CUDA as a captured graph.

The graph holds augmentation, forward, backward, optimizer and weight averaging: one launch per
step. The first steps of a run warm up eagerly; they are real steps too.

With several processes each extracts its part of the batch, and all compute the loss of the whole
batch: terms over pairs, batch statistics and buffers are those of a single process.

The learning rate is a pure function of the step, so that resuming needs no scheduler state. Each
parameter group has its own base rate. On CUDA the rates are tensors, so that a captured graph sees
them change.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phpq.config import RunConfig, TrainingConfig
from phpq.data.batches import PARAMETERS, Views
from phpq.model.method import Method
from phpq.training.distributed import ALONE, Group

EAGER_STEPS = 8  # before the capture, for cuDNN to pick algorithms and the compiler to finish


def build_optimizer(network: Method, config: TrainingConfig) -> torch.optim.Optimizer:
    """Create the optimizer that the config names: one group for the backbone, one for the head."""
    groups: list[dict[str, Any]] = network.parameter_groups(
        config.learning_rate, config.head_rate_factor
    )
    device = next(network.parameters()).device
    on_cuda = device.type == "cuda"
    for group in groups:
        rate = group["base_rate"]
        group["lr"] = torch.tensor(rate, device=device) if on_cuda else rate
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            groups, momentum=0.9, nesterov=True, weight_decay=config.weight_decay, fused=on_cuda
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, weight_decay=config.weight_decay, fused=on_cuda, capturable=on_cuda)


def rate_factor(step: int, *, steps_per_epoch: int, config: TrainingConfig) -> float:
    """Return the factor of the base rate at a step of the run (from 0): warm-up, then cosine."""
    warmup = min(config.warmup_epochs, config.epochs / 2) * steps_per_epoch
    if step < warmup:
        return (step + 1) / (warmup + 1)
    total = config.epochs * steps_per_epoch
    progress = (step - warmup) / max(1.0, total - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.final_rate + (1 - config.final_rate) * cosine


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its own base rate times the factor."""
    for group in optimizer.param_groups:
        rate = group["base_rate"] * factor
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate


class AveragedWeights:
    """An exponential moving average of a network's weights and buffers.

    The decay at step t is min(decay, (1 + t) / (10 + t)), so that the initial weights are forgotten
    soon.
    """

    def __init__(self, source: nn.Module, target: nn.Module, decay: float) -> None:
        self.decay = decay
        frozen = {name for name, p in source.named_parameters() if not p.requires_grad}
        pairs = zip(source.state_dict().items(), target.state_dict().values(), strict=True)
        floating = [(s, t) for (k, s), t in pairs if s.is_floating_point() and k not in frozen]
        self.weight = torch.ones((), device=floating[0][0].device)
        # t - w (t - s) is a step of SGD with weight decay 1 and gradient -s. Its fused kernel reads
        # and writes everything once, and takes w from the device.
        for s, t in floating:
            t.grad = s
        targets = [t for _, t in floating]
        self.mover = torch.optim.SGD(
            targets, lr=self.weight, weight_decay=1.0, maximize=True, fused=True
        )

    def set_step(self, step: int) -> None:
        """Choose the weight of the next update; outside the captured graph."""
        self.weight.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    def update(self) -> None:
        """Move every target a little towards its source."""
        self.mover.step()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step, on the device."""

    losses: Tensor  # (1 + terms,) the total loss, then the method's terms
    codes: Tensor  # (B, M) uint8: the hard codes of the batch, to measure their use


class LearningStep(nn.Module):
    """From the images of this process to the loss of the whole batch, equal in all processes."""

    def __init__(self, network: Method, precision: str, group: Group) -> None:
        super().__init__()
        self.network, self.precision, self.group = network, precision, group

    def forward(
        self, images: Tensor, labels: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Extract this process's part (b, 3, H, W), gather those of all, and compute the loss.

        Returns the loss; (1 + terms,) the loss and its terms, detached; codes (B, M) uint8.
        """
        device = images.device.type
        half = self.precision == "bf16" or (self.precision == "auto" and device == "cuda")
        with torch.autocast(device, torch.bfloat16, enabled=half):
            extracted = self.network.extract(images)
        extracted = gather_batch(extracted, self.group)
        labels, rows = self.group.gather(labels), self.group.gather(rows)
        with self.group.whole_batch():
            learned = self.network.objective(extracted, labels, rows)
        losses = torch.stack([learned.loss, *learned.parts]).detach()
        return learned.loss, losses, learned.codes


class TrainStep:
    """Runs one step: augment, forward, backward, update, average."""

    def __init__(
        self,
        network: Method,
        optimizer: torch.optim.Optimizer,
        average: AveragedWeights | None,
        config: RunConfig,
        *,
        views: Views | None = None,
        half: bool = False,
        group: Group = ALONE,
    ) -> None:
        self.network, self.optimizer, self.average = network, optimizer, average
        self.group = group
        self.views = views or Views(config.data)
        device = next(network.parameters()).device
        precision = "bf16" if half else config.training.precision
        self.learning = LearningStep(network, precision, group)
        self._parallel: DistributedDataParallel | None = None
        self._fresh = True  # which parameters a step uses is not known yet
        self.view = training_view
        if group.size == 1 and acceleration(config, device) == "full":
            import torch._dynamo.config as dynamo

            # A process may train many networks, and compiles the same code for each kind of
            # backbone and batch. Beyond this limit torch would run uncompiled.
            dynamo.recompile_limit = max(dynamo.recompile_limit, dynamo.accumulated_recompile_limit)
            for part in network.compiled_parts():
                part.compile(dynamic=False)
            self.view = torch.compile(training_view, dynamic=False)

    def __call__(
        self, pixels: Tensor, labels: Tensor, rows: Tensor, parameters: Tensor
    ) -> StepResult:
        """Learn from this process's part of one batch.

        Takes the input of the views, as pixels (b, 3, S, S) uint8; labels (b,) int64; the position
        of each image in the training set (b,) int64; and augmentations (b, 8) float32.
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
        """Find again which parameters a step uses, since it has changed."""
        self._fresh = True

    def _share_gradients(self) -> None:
        """Average the gradients of the first step; `DistributedDataParallel` does so later.

        It must know whether a step leaves parameters unused, such as codebooks before their first
        epoch. The first step shows that; control flow is the same in all processes.
        """
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        used = [p.grad for p in parameters if p.grad is not None]
        for gradient in used:
            gradient.copy_(self.group.sum(gradient) / self.group.size)
        unused = len(used) < len(parameters)
        device = parameters[0].device
        if self._parallel is None or self._parallel.find_unused_parameters != unused:
            with warnings.catch_warnings():
                # An option's name changes between the versions of torch that we support.
                warnings.simplefilter("ignore", FutureWarning)
                self._parallel = DistributedDataParallel(
                    self.learning,
                    device_ids=[device] if device.type == "cuda" else None,
                    broadcast_buffers=False,  # they are equal already
                    find_unused_parameters=unused,
                )
        self._fresh = False


def training_view(views: Views, pixels: Tensor, parameters: Tensor) -> Tensor:
    """Return the augmented batch, in channels-last memory format."""
    images = views.train(pixels, parameters)
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def gather_batch(extracted: Any, group: Group) -> Any:
    """Gather the tensors (b, ...) that `Method.extract` returned, differentiably."""
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

    Every process computes the same loss of the whole batch, hence the same gradient: the sum over
    processes of the gradients of one part is its own slice, times their number. The backward pass
    exchanges nothing, and the mean of gradients over processes is that of a single process.
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
        self.step, self.pixels, self.labels = step, pixels, labels
        device = pixels.device
        self.rows = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.parameters = torch.zeros(batch_size, PARAMETERS, device=device)
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.restart()

    def restart(self) -> None:
        """Drop the captured graph, since a step has changed."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: StepResult | None = None
        self.done = 0

    def __call__(self, rows: Tensor, parameters: Tensor) -> StepResult:
        """Learn from the images `rows` (B,) with augmentation (B, 8).

        The result is overwritten by the next step.
        """
        self.rows.copy_(rows)
        self.parameters.copy_(parameters)
        if self.graph is None and self.done >= EAGER_STEPS:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self._compute()
        if self.graph is not None:
            self.graph.replay()
        else:
            # Warm up on a side stream, as a capture requires.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.result = self._compute()
            torch.cuda.current_stream().wait_stream(self.stream)
        self.done += 1
        assert self.result is not None
        return self.result

    def _compute(self) -> StepResult:
        rows = self.rows
        return self.step(self.pixels[rows], self.labels[rows], rows, self.parameters)


def acceleration(config: RunConfig, device: torch.device) -> str:
    """Resolve "auto": a CUDA graph on CUDA, plain steps elsewhere.

    Compiling ("full") costs more time than it saves in one run on a small data set.
    """
    wanted = config.training.accelerate
    if device.type != "cuda":
        return "off"
    return "graph" if wanted == "auto" else wanted
