"""Runs a job in several processes that form a group on this machine, by gloo on the CPU.

Jobs are functions of this module: children find them by name. A server process imports torch once
and forks them, so that a group starts in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phpq.config import RunConfig
from phpq.data.batches import plan_epoch
from phpq.model.weights import write_safetensors
from phpq.training import SilentReporter, Trainer, train_run
from phpq.training.distributed import Group, Launch, connect
from phpq.training.synced_norm import synchronise
from tiny_runs import CLASSES, tiny_birds

Job = Callable[..., None]
SECONDS = 100  # a group that hangs fails its test


def together(size: int, job: Job, *arguments: Any) -> list[int | None]:
    """Run `job(group, *arguments)` in `size` processes; returns their exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["process_groups"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=_member, args=(Launch(rank, size, rank, size), port, job, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def address(port: int) -> dict[str, str]:
    """Return where the processes meet, as a launcher tells them."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _member(launch: Launch, port: int, job: Job, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(address(port))
    group = connect(launch, device="cpu")
    job(group, *arguments)
    group.close()


def train(group: Group, config: RunConfig, folder: Path, resume: bool = False) -> None:
    """Train on the drawn birds; every process keeps the weights that it ended with."""
    model = train_run(tiny_birds(), config, folder, group=group, resume=resume)
    own = folder.parent / f"{folder.name}-{group.size}-{group.rank}.safetensors"
    write_safetensors(own, model.network.state_dict(), {})


class Stopped(Exception):
    """The end of a run that is to be resumed."""


class _Stop(SilentReporter):
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def step(self, epoch: int, number: int) -> None:
        if epoch == self.epochs:
            raise Stopped


def train_until(group: Group, config: RunConfig, folder: Path, epochs: int) -> None:
    """Train, and end all processes within a later epoch."""
    import phpq.training.run as run

    # The reporter is only for the first process: the others get theirs here.
    run.SilentReporter = lambda: _Stop(epochs)  # type: ignore[assignment,misc]
    try:
        train_run(tiny_birds(), config, folder, group=group, reporter=_Stop(epochs))
    except Stopped:
        return
    raise AssertionError("the run was not stopped")


def gradients(group: Group, config: RunConfig, path: Path) -> None:
    """Write the gradients of the second step, which is the first in parallel."""
    trainer = Trainer(
        tiny_birds(),
        config,
        device=torch.device("cpu"),
        reporter=SilentReporter(),
        group=group,
    )
    trainer.prepare_epoch(0)
    plan = plan_epoch(trainer.labels, 0, data=config.data, training=config.training)
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    for number in range(2):
        for entry, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
            entry["lr"] = 0 * rate  # the same weights in both steps
        rows = torch.from_numpy(plan.indices[number, trainer.part].copy())
        parameters = torch.from_numpy(plan.parameters[number, trainer.part].copy())
        assert trainer.pixels.resident is not None
        pixels = trainer.pixels.resident.pixels[rows]
        trainer.step(pixels, trainer.device_labels[rows], rows, parameters)
    found = {
        name: parameter.grad
        for name, parameter in trainer.network.named_parameters()
        if parameter.grad is not None
    }
    if group.first:
        write_safetensors(path, found, {})


def normalise(
    group: Group, norms: Mapping[str, nn.Module], inputs: Mapping[str, Tensor], path: Path
) -> None:
    """Write outputs, gradients and state of batch norms over three parts of batches."""
    found = {}
    for name, norm in norms.items():
        module = nn.ModuleDict({"norm": norm})
        synchronise(module, group)
        values = inputs[name]  # (3, B, C, ...)
        for number, batch in enumerate(values):
            mine = batch[group.part(len(batch))].clone().requires_grad_()
            output = module(mine) if False else module["norm"](mine)
            weights = torch.linspace(-1, 2, batch.numel()).view(batch.shape)
            weights = weights.sin()[group.part(len(batch))]
            (output.float() * weights).sum().backward()
            assert mine.grad is not None
            found[f"{name}.{number}.output"] = group.gather(output.detach())
            found[f"{name}.{number}.grad"] = group.gather(mine.grad)
        found |= {f"{name}.{key}": value for key, value in module["norm"].state_dict().items()}
        for key, parameter in module["norm"].named_parameters():
            assert parameter.grad is not None
            found[f"{name}.{key}.grad"] = group.sum(parameter.grad)
        module.eval()
        found[f"{name}.eval"] = module["norm"](values[0])
    if group.first:
        write_safetensors(path, {key: value.detach() for key, value in found.items()}, {})


def exchange(group: Group, path: Path) -> None:
    """Write what each way to exchange tensors gives."""
    found = {}
    for count in (1, 3, 8):
        mine = torch.arange(float(count))[group.rows(count)]
        found[f"rows.{count}"] = group.gather_rows(torch.stack([mine, mine + 0.5], 1), count)
    own = torch.full((2, 3), float(group.rank))
    found["gather"] = group.gather(own)
    found["sum"] = group.sum(own)
    bytes_ = torch.full((1,), group.rank, dtype=torch.uint8)
    found["bytes"] = group.gather(bytes_)
    layered = torch.full((1, 2, 3, 3), float(group.rank)).to(memory_format=torch.channels_last)
    group.broadcast([own, layered])
    found["broadcast"] = torch.cat([own.flatten(), layered.flatten()])
    means = [torch.full((2, 2), float(group.rank)), torch.tensor(float(2 * group.rank))]
    group.average(means)
    found["average"] = torch.cat([mean.flatten() for mean in means])
    found["every"] = torch.tensor([group.every(True), group.every(group.rank != 1)])
    write_safetensors(path.with_suffix(f".{group.rank}"), found, {})


def classes() -> int:
    """Return the classes of the drawn birds."""
    return CLASSES
