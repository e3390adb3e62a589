"""One optimisation step: pixels and labels in, losses out; as a CUDA graph where it can be.

The captured graph holds augmentation, forward, backward, the optimizer and the average: one launch
a step. The first steps of a run are real steps too, run eagerly; nothing is computed twice.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from phpq.config import RunConfig
from phpq.data.augment import PARAMETERS, Views
from phpq.model.method import Method
from phpq.training.optimizer import AveragedWeights

EAGER_STEPS = 8  # let cuDNN pick its algorithms and the compiler finish before the capture


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step leaves on the device."""

    losses: Tensor  # (1 + terms,) the whole loss, then the method's terms
    codes: Tensor  # (B, M) uint8: the hard codes of the batch, for the health of the codes


class TrainStep:
    """Runs one step: augment, forward, backward, update, average."""

    def __init__(
        self,
        network: Method,
        optimizer: torch.optim.Optimizer,
        average: AveragedWeights | None,
        config: RunConfig,
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.average = average
        self.config = config
        self.views = Views(config.data)
        self.device = next(network.parameters()).device
        if acceleration(config, self.device) == "full":
            for part in network.compiled_parts():
                part.compile(dynamic=False)

    def __call__(
        self, pixels: Tensor, labels: Tensor, rows: Tensor, parameters: Tensor
    ) -> StepResult:
        """Learn from one batch.

        Args:
            pixels: (B, 3, S, S) uint8.
            labels: (B,) int64.
            rows: (B,) int64, the place of each image in the training set.
            parameters: (B, 8) float32, the augmentation.
        """
        self.network.train()
        images = self.views.train(pixels, parameters)
        images = images.contiguous(memory_format=torch.channels_last)
        with self._autocast():
            extracted = self.network.extract(images)
        learned = self.network.objective(extracted, labels, rows)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(learned.loss)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        losses = torch.stack([learned.loss, *learned.parts])
        return StepResult(losses.detach(), learned.codes)

    def _autocast(self) -> AbstractContextManager[None]:
        wanted = self.config.training.precision
        enabled = wanted == "bf16" or (wanted == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)


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

    Compiling too gives a quarter more speed but takes half a minute to start, more than it saves in
    one run on a small data set: "full" asks for it.
    """
    wanted = config.training.accelerate
    if device.type != "cuda":
        return "off"
    return "graph" if wanted == "auto" else wanted
