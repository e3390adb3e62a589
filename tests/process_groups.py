"""Runs a job in several processes that form a group on this machine, by gloo on the CPU.

Jobs are functions of this module: children find them by name. A server process imports torch once
and forks them, so that a group starts in a fraction of a second.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phpq.cli import main
from phpq.config import RunConfig
from phpq.data import LabelledImages, open_dataset
from phpq.data.batches import plan_epoch
from phpq.data.decode import decode_readable
from phpq.errors import ConfigError, DivergedError, PhpqError
from phpq.methods.exchnet import ExchNet
from phpq.model import Network
from phpq.model.weights import write_safetensors
from phpq.training import Reporter, Trainer, train_run
from phpq.training.distributed import Group, synchronise
from phpq.training.pixels import decode_together
from phpq.training.run import RunState
from tiny_runs import tiny_birds

Job = Callable[..., None]
WROTE = 19  # exit code of a process that wrote what only the first may write
SECONDS = 100  # a group that hangs fails its test


def together(size: int, job: Job, *arguments: Any) -> list[int | None]:
    """Run `job(group, *arguments)` in `size` processes; returns their exit codes."""
    return _start(size, _member, (job, arguments))


def launched(size: int, folder: Path, *arguments: str) -> list[int | None]:
    """Run `phpq` in `size` processes as torchrun would; `folder` gets <rank>.out and <rank>.err."""
    return _start(size, _command, (folder, arguments))


def _start(size: int, target: Job, arguments: tuple[Any, ...]) -> list[int | None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["process_groups"])
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # the server's
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=target, args=(Group(rank, size, rank, size), port, *arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def environment(group: Group, port: int) -> dict[str, str]:
    """Return what torchrun sets."""
    return {
        "RANK": str(group.rank),
        "WORLD_SIZE": str(group.size),
        "LOCAL_RANK": str(group.local_rank),
        "LOCAL_WORLD_SIZE": str(group.local_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _member(group: Group, port: int, job: Job, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(environment(group, port))
    group.meet()
    group.join("cpu")
    job(group, *arguments)
    group.close()


def _command(group: Group, port: int, folder: Path, arguments: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(environment(group, port))
    os.chdir(folder)
    sys.argv = ["phpq", *arguments]
    sys.stdout = (folder / f"{group.rank}.out").open("w", buffering=1)
    sys.stderr = (folder / f"{group.rank}.err").open("w", buffering=1)
    main()


def train(
    group: Group, configs: Mapping[str, RunConfig], folder: Path, resume: bool = False
) -> None:
    """Train on the drawn birds, a run for each config; every process keeps its own weights."""
    for name, config in configs.items():
        model = train_run(tiny_birds(), config, folder / name, group=group, resume=resume)
        own = folder / f"{name}-{group.rank}.safetensors"
        write_safetensors(own, model.network.state_dict(), {})


class Stopped(Exception):
    """The end of a run that is to be resumed."""


class _Stop(Reporter):
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def step(self, epoch: int, number: int) -> None:
        if epoch == self.epochs:
            raise Stopped


def train_until(group: Group, config: RunConfig, folder: Path, epochs: int) -> None:
    """Train, and end all processes within a later epoch."""
    import phpq.training.run as run

    # The reporter is only for the first process: the others get theirs here.
    setattr(run, "Reporter", lambda: _Stop(epochs))  # noqa: B010
    try:
        train_run(tiny_birds(), config, folder, group=group, reporter=_Stop(epochs))
    except Stopped:
        return
    raise AssertionError("the run was not stopped")


class _Killed(Reporter):
    """Ends its process in the middle of an epoch, as the kernel does when memory is short."""

    def __init__(self, epoch: int) -> None:
        self.dies_in = epoch

    def step(self, epoch: int, number: int) -> None:
        if epoch == self.dies_in and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_be_killed(group: Group, config: RunConfig, folder: Path, epoch: int) -> None:
    """Train; the third process is killed in an epoch, and none but the first writes anything."""
    import phpq.training.run as run

    def forbidden(*arguments: Any, **options: Any) -> None:
        os._exit(WROTE)

    if not group.first:
        for name in ("write_card", "write_text", "write_weights", "plot_training"):
            setattr(run, name, forbidden)
        setattr(RunState, "save", forbidden)  # noqa: B010
    if group.rank == 2:
        setattr(run, "Reporter", lambda: _Killed(epoch))  # noqa: B010
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  tracebacks are expected
    train_run(tiny_birds(), config, folder, group=group)


def train_and_diverge(group: Group, config: RunConfig, folder: Path, call: int) -> None:
    """Train; one step of the last process's network gives no numbers. Each writes what it hears."""
    plain, calls = Network.extract, iter(range(10_000))

    def extract(self: Network, images: Tensor) -> Tensor:
        spoilt = self.training and next(calls) == call and group.rank == group.size - 1
        return plain(self, images) * (torch.nan if spoilt else 1)

    setattr(Network, "extract", extract)  # noqa: B010
    try:
        train_run(tiny_birds(), config, folder, group=group)
    except DivergedError as error:
        (folder.parent / f"diverged-{group.rank}").write_text(str(error), "utf-8")
        return
    raise AssertionError("the run went on")


def decode(group: Group, source: str, config: RunConfig, folder: Path, cache: Path | None) -> None:
    """Write the pixels that this process got, which images they are of, and what it decoded."""
    import phpq.training.pixels as pixels

    asked: list[str] = []

    def recorded(images: LabelledImages, *arguments: Any, **options: Any) -> Any:
        asked.extend(images.ids)
        return decode_readable(images, *arguments, **options)

    setattr(pixels, "decode_readable", recorded)  # noqa: B010
    setattr(pixels, "BLOCK_BYTES", 10_000)  # noqa: B010  several blocks
    try:
        found = decode_together(open_dataset(source).train, config.data, group=group, cache=cache)
    except PhpqError as error:
        (folder / f"{group.rank}.json").write_text(json.dumps({"error": str(error)}), "utf-8")
        return
    np.save(folder / f"{group.rank}.npy", found.pixels)
    facts = {
        "ids": found.images.ids,
        "asked": asked,
        "skipped": [[image.id, image.reason] for image in found.skipped],
    }
    (folder / f"{group.rank}.json").write_text(json.dumps(facts), "utf-8")


def gradients(group: Group, configs: Mapping[str, RunConfig], folder: Path) -> None:
    """Write losses and gradients of three steps of each config, in float64.

    Rounding cannot hide a mistake there, and methods that amplify it agree as well as others.
    """
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]  # methods widen to it
    found = {}
    for name, config in configs.items():
        trainer = Trainer(
            tiny_birds(), config, device=torch.device("cpu"), reporter=Reporter(), group=group
        )
        if isinstance(trainer.network, ExchNet):  # the one method that names float32
            trainer.network.counts = trainer.network.counts.to(torch.float32)
        trainer.prepare_epoch(0)
        plan = plan_epoch(trainer.labels, 0, data=config.data, training=config.training)
        for number in range(3):  # the first learns what is used, the others are in parallel
            rows = torch.from_numpy(plan.indices[number, trainer.batch_slice].copy())
            parameters = torch.from_numpy(plan.parameters[number, trainer.batch_slice]).double()
            assert trainer.pixels.resident is not None
            pixels = trainer.pixels.resident.pixels[rows]
            result = trainer.step(pixels, trainer.device_labels[rows], rows, parameters)
            found[f"{name}.{number}.losses"] = result.losses
            found[f"{name}.{number}.codes"] = result.codes
            for key, parameter in trainer.network.named_parameters():
                if parameter.grad is not None:
                    found[f"{name}.{number}.{key}"] = parameter.grad.clone()
        found |= {f"{name}.{k}": v.clone() for k, v in trainer.averaged.state_dict().items()}
    if group.first:
        write_safetensors(folder / f"{group.size}.safetensors", found, {})


def normalise(
    group: Group, norms: Mapping[str, nn.Module], inputs: Mapping[str, Tensor], path: Path
) -> None:
    """Write outputs, gradients and state of batch norms over three parts of batches."""
    found = {}
    for name, norm in norms.items():
        # A copy: tensors come here through memory that all processes share.
        module = nn.ModuleDict({"norm": copy.deepcopy(norm)})
        synchronise(module, group)
        values = inputs[name]  # (3, B, C, ...)
        for number, batch in enumerate(values):
            mine = batch[group.batch_slice(len(batch))].clone().requires_grad_()
            output = module["norm"](mine)
            weights = torch.linspace(-1, 2, batch.numel()).view(batch.shape)
            weights = weights.sin()[group.batch_slice(len(batch))]
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
    texts = group.gather_objects("ä" * group.rank)
    found["texts"] = torch.tensor([len(text) for text in texts])
    own.fill_(group.rank)
    group.broadcast([own], source=2)
    found["from_last"] = own
    found["every"] = torch.tensor([group.every(True), group.every(group.rank != 1)])
    write_safetensors(path.with_suffix(f".{group.rank}"), found, {})


def refuse() -> None:
    """Fail as a user's mistake does."""
    raise ConfigError("no")


def fail_together(group: Group, folder: Path) -> None:
    """Write what each process sees of an action that fails in the first."""
    try:
        group.on_first(refuse)
    except PhpqError as error:
        (folder / str(group.rank)).write_text(f"{type(error).__name__}: {error}", "utf-8")


def report(group: Group, folder: Path) -> None:
    """Leave a file named for the process that was to report; the first has nothing to say."""
    group.report_once(None if group.first else (folder / str(group.rank)).touch)


def die_alone(group: Group) -> None:
    """End the second process while the first waits for it."""
    if not group.first:
        os._exit(7)
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  the traceback is expected
    group.every(True)
