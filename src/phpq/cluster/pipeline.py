"""One Ray Data pipeline: references to stretches of images in, encoded stretches out, in order.

Actors hold the model of a gallery and encode stretches of a source. Ray Data runs in a process of
the cluster, not in one that came through ray://; for such a one a `Conductor`, an actor without a
CPU of its own, runs the pipeline.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.errors import ConfigError
from phpq.gallery.ingest import Encoded, encode_items
from phpq.gallery.of_run import MODEL

if TYPE_CHECKING:
    from phpq.model import Model

_MOST_CPUS = 4  # an actor on CPUs: more of them, each with a model, beat larger ones
_MOST_FEEDERS = 8  # CPUs that decode for one GPU


@dataclass(frozen=True, slots=True)
class Actors:
    """Actors of one kind."""

    count: int
    cpus: int  # of each: threads that decode, and compute where there is no GPU
    gpus: int  # of each: 1 or 0


def fit_actors(
    nodes: Sequence[Mapping[str, float]], *, wanted: int = 0, gpus: bool = True
) -> Actors:
    """Divide a cluster among actors; raises `ConfigError` if there is room for none.

    Args:
        nodes: The resources of each living node, as in {"CPU": 8, "GPU": 1}.
        wanted: Actors at most; 0 is as many as there is room for.
        gpus: Use GPUs where there are any: one per actor, and no actors elsewhere.
    """
    sizes = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes]
    fast = [(cpu, gpu) for cpu, gpu in sizes if gpu and cpu] if gpus else []
    if fast:
        each = min(max(1, cpu // gpu) for cpu, gpu in fast)
        room = sum(min(gpu, cpu) for cpu, gpu in fast)
        return Actors(min(wanted or room, room), min(each, _MOST_FEEDERS), 1)
    most = max((cpu for cpu, _ in sizes), default=0)
    if most < 1:
        raise ConfigError(
            f"The Ray cluster has no CPU to encode with: {len(nodes)} nodes, none with a CPU. "
            "Start nodes with ray start --num-cpus N, or leave out --ray."
        )
    total = sum(cpu for cpu, _ in sizes)
    each = min(most, _MOST_CPUS, max(1, total // wanted) if wanted else _MOST_CPUS)
    room = sum(cpu // each for cpu, _ in sizes)
    return Actors(min(wanted or room, room), each, 0)


@dataclass(frozen=True, slots=True)
class Work:
    """What every actor is told."""

    folder: str  # the gallery, on storage that all nodes see
    batch_size: int  # images that the model sees at once
    keep_embeddings: bool
    device: str  # as `phpq.load` takes it
    threads: int  # that decode, and compute on a CPU


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Images that follow each other in a source, encoded; a type that Ray leaves as it is."""

    batches: tuple[list[Encoded], ...]


class EncodingActor:
    """Holds the model of a gallery and encodes stretches: Ray references to lists of `Item`."""

    def __init__(self, work: Work, stretches: Sequence[Any]) -> None:
        self._work = work
        self._stretches = stretches
        self._model: Model | None = None

    def __call__(self, tickets: dict[str, Any]) -> dict[str, Any]:
        """Encode stretches: {"number": (n,) int} in, with "stretch": (n,) `Stretch` out."""
        import ray

        work = self._work
        # Loaded here, and not when the actor is made: an error comes back as what it is.
        self._model = self._model or _load(work)
        done = np.empty(len(tickets["number"]), dtype=object)
        for place, number in enumerate(tickets["number"]):
            batches = encode_items(
                ray.get(self._stretches[int(number)]),
                self._model,
                batch_size=work.batch_size,
                keep_embeddings=work.keep_embeddings,
                workers=work.threads,
            )
            # Without pixels: they were looked at, and the way back is long.
            light = (
                [replace(image, item=replace(image.item, image=b"")) for image in batch]
                for batch in batches
            )
            done[place] = Stretch(tuple(light))
        return {"number": tickets["number"], "stretch": done}


def _load(work: Work) -> Model:
    import torch

    from phpq.model import load

    folder = Path(work.folder) / MODEL
    if not folder.is_dir():
        raise ConfigError(
            f"The gallery {work.folder!r} is not to be seen on {socket.gethostname()!r}. Put it "
            "where all machines of the cluster find it under the same name, as on NFS."
        )
    torch.set_num_threads(work.threads)
    return load(folder, device=work.device)


def encode_stretches(
    stretches: list[Any], first: int, work: Work, actors: Actors
) -> Generator[tuple[int, Stretch], None, None]:
    """Encode the stretches from `first` on; yields their numbers and what became of them, in order.

    Raises:
        ray.exceptions.RayError: If an actor or its node dies; nothing is lost but what was not
            yielded.
    """
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # progress is shown by the caller
    tickets = [{"number": number} for number in range(first, len(stretches))]
    dataset = ray.data.from_items(tickets, override_num_blocks=len(tickets))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ray_remote_args", DeprecationWarning)
        encoded = dataset.map_batches(
            EncodingActor,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(actors.count, len(tickets))),
            fn_constructor_kwargs={"work": work, "stretches": stretches},
            num_cpus=actors.cpus,
            num_gpus=actors.gpus,
            max_restarts=0,
        )
    encoded.context.execution_options.preserve_order = True
    encoded.context.enable_progress_bars = False
    rows = iter(encoded.iter_rows())
    try:
        for row in rows:
            yield int(row["number"]), row["stretch"]
    finally:
        if hasattr(rows, "close"):
            rows.close()  # the actors stop


class Conductor:
    """A pipeline, as `encode_stretches`, that another process asks for its results one by one."""

    def __init__(self, stretches: list[Any], first: int, work: Work, actors: Actors) -> None:
        self._rows = encode_stretches(stretches, first, work, actors)

    def next(self) -> tuple[int, Stretch] | None:
        """Return the next stretch, or None after the last."""
        return next(self._rows, None)


def through_conductor(
    ray: Any, stretches: list[Any], first: int, work: Work, actors: Actors
) -> Generator[tuple[int, Stretch], None, None]:
    """Do as `encode_stretches` from a process that came through ray://."""
    actor = ray.remote(Conductor).options(num_cpus=0)
    conductor = actor.remote(stretches, first, work, actors)
    try:
        while (row := ray.get(conductor.next.remote())) is not None:
            yield row
    finally:
        ray.kill(conductor)  # and the actors that it made go with it
