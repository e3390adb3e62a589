"""Bulk encoding on Ray Data: images in, records in their order out, and their rows written.

    with ray_engine(gallery.path, "auto") as engine:
        gallery.add("s3://bucket/birds/", engine=engine)

Actors hold the model of the gallery and encode stretches of the source, in the batches that one
process would encode. This process numbers the records, has workers write them as fragments of the
dataset, and commits them. Why so: docs/decisions/0009-ray-encoding.md.

Ray Data runs in a process of the cluster, not in one that came through ray://; for such a one a
`Conductor`, an actor without a CPU of its own, runs the pipeline.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.cluster.connection import LOCAL, connected, first_line
from phpq.codes import Space
from phpq.data.places import is_uri
from phpq.errors import ConfigError, PhpqError
from phpq.gallery.ingest import Encoded, encode_items
from phpq.gallery.models import MODEL
from phpq.gallery.sources import Item
from phpq.gallery.store import write_at, write_here

if TYPE_CHECKING:
    from phpq.model import Model

_DEVICES = ("auto", "cuda", "cpu")
_BATCHES = 8  # of a stretch; the first stretches are of one batch, so that all actors have some
_STRETCHES = 1024  # listed at once: half a million images, then the next
_FRAGMENT_ROWS = 1024  # fewer are not worth a file of their own
_FAILURES = 5  # in a row, without an image between them, before the work is given up
_PAUSE = 2.0  # seconds after a failure: the cluster learns who is left
_MOST_CPUS = 4  # an actor on CPUs: more of them, each with a model, beat larger ones
_MOST_FEEDERS = 8  # CPUs that decode for one GPU

log = logging.getLogger(__name__)


@contextmanager
def ray_engine(
    folder: str | Path, address: str = LOCAL, *, actors: int = 0, device: str = "auto"
) -> Iterator[RayEngine]:
    """Connect to a Ray cluster for `Gallery.add`, and leave it at the end; see `connected`.

    Args:
        folder: The gallery; all nodes see it under this name.
        address: "local" starts a cluster on this machine; also "auto", HOST:PORT, ray://HOST:PORT.
        actors: Models at work at most; 0 is one per GPU, or what the CPUs have room for.
        device: "auto" takes the GPUs of the cluster where it has any; "cuda" and "cpu" insist.
    """
    if actors < 0:
        raise ConfigError(f"actors={actors} is not allowed: it must be at least 0.")
    if device not in _DEVICES:
        raise ConfigError(
            f"device={device!r} cannot be used with Ray, which assigns the devices. Use "
            f"{' or '.join(_DEVICES)}."
        )
    with connected(address) as ray:
        yield RayEngine(ray, Path(folder).absolute(), actors=actors, device=device)


class RayEngine:
    """A `phpq.gallery.ingest.Engine` on a Ray cluster; make it with `ray_engine`."""

    def __init__(self, ray: Any, folder: Path, *, actors: int = 0, device: str = "auto") -> None:
        self._ray = ray
        self._folder = folder
        self._wanted = actors
        self._device = device
        self._now: Actors | None = None  # of the pipeline that runs

    @property
    def workers(self) -> int:
        """Actors at work, or those that the cluster has room for."""
        return (self._now or self._fit()).count

    def encode(
        self,
        items: Iterable[Item],
        model: Model,
        *,
        batch_size: int = 64,
        keep_embeddings: bool = False,
        space: Space = "learned",
    ) -> Generator[list[Encoded], None, None]:
        """Do as `phpq.gallery.ingest.encode_items`; the actors load the gallery's own model."""
        actors = self._fit()
        device = "cuda" if actors.gpus else "cpu"
        home = (model.folder or self._folder / MODEL).absolute()
        if not home.is_relative_to(self._folder):  # the run that the gallery was just made with
            home = self._folder / MODEL
        work = Work(str(home), batch_size, keep_embeddings, device, actors.cpus, space)
        images = map(_anywhere, items)
        while stretches := self._put(images, batch_size, few=4 * actors.count):
            yield from self._encode(stretches, work)

    def write(self, table: Any, dataset: Any) -> list[Any]:
        """Write a table as fragments of a dataset, in parallel; none is seen before the commit."""
        parts = max(1, min(self.workers, table.num_rows // _FRAGMENT_ROWS))
        size = -(-table.num_rows // parts)
        uri = dataset.uri if is_uri(dataset.uri) else str(Path(dataset.uri).absolute())
        # No CPU is asked for: the actors have them all, and this is a moment's work.
        task = self._ray.remote(write_at).options(
            num_cpus=0, max_retries=3, scheduling_strategy="SPREAD"
        )
        try:
            written = self._ray.get(
                [
                    task.remote(table.slice(start, size), uri, dataset.version)
                    for start in range(0, table.num_rows, size)
                ]
            )
        except self._ray.exceptions.RayError:
            # What was encoded is kept even where the cluster is gone.
            log.warning("The cluster could not write %d rows; this process does.", table.num_rows)
            return write_here(table, dataset)
        return [fragment for fragments in written for fragment in fragments]

    def _fit(self) -> Actors:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._now = fit_actors(nodes, wanted=self._wanted, gpus=self._device != "cpu")
        if self._device == "cuda" and not self._now.gpus:
            raise ConfigError(
                f"device='cuda' needs a GPU, and the Ray cluster of {len(nodes)} nodes has none. "
                "Use auto or cpu, or start a node on a machine with a GPU."
            )
        return self._now

    def _put(self, images: Iterator[Item], batch_size: int, *, few: int) -> list[Any]:
        """Put the next stretches into the object store; returns their references."""
        stretches: list[Any] = []
        while len(stretches) < _STRETCHES:
            batches = 1 if len(stretches) < few else _BATCHES
            stretch = list(islice(images, batches * batch_size))
            if not stretch:
                break
            stretches.append(self._ray.put(stretch))
        return stretches

    def _encode(self, stretches: list[Any], work: Work) -> Generator[list[Encoded], None, None]:
        """Encode stretches; the unfinished work of a dead node is given to the others.

        Ray Data would start a dead actor again and wait for it, where the cluster may have no room
        left. Here the work goes on, from the first stretch that is missing, with the actors
        that the living nodes have room for.
        """
        first, failures = 0, 0
        while first < len(stretches):
            rows = self._rows(stretches, first, work)
            try:
                for number, stretch in rows:
                    assert number == first, (number, first)
                    yield from stretch.batches
                    first, failures = first + 1, 0
            except self._ray.exceptions.RayError as error:
                failures += 1
                _raise_if_ours(error)
                if failures > _FAILURES:
                    raise ConfigError(
                        f"The Ray cluster failed {failures} times in a row: {first_line(error)} "
                        "What is done is in the gallery; run this again to go on."
                    ) from error
                log.warning("A node or an actor was lost; going on. (%s)", first_line(error))
                time.sleep(_PAUSE)
            finally:
                rows.close()

    def _rows(
        self, stretches: list[Any], first: int, work: Work
    ) -> Generator[tuple[int, Stretch], None, None]:
        """Run one pipeline over the stretches from `first` on, on the nodes that live."""
        actors = self._fit()
        if bool(actors.gpus) != (work.device == "cuda"):
            raise ConfigError(
                f"The work began on {work.device}, and the cluster has no such device now; another "
                "would round otherwise. What is done is in the gallery; run this again to go on."
            )
        work = replace(work, threads=actors.cpus)
        if self._ray.util.client.ray.is_connected():
            return through_conductor(self._ray, stretches, first, work, actors)
        return encode_stretches(stretches, first, work, actors)


def _anywhere(item: Item) -> Item:
    """Return an item that means the same on another machine."""
    return replace(item, image=item.image.absolute()) if isinstance(item.image, Path) else item


def _raise_if_ours(error: BaseException) -> None:
    """Raise the mistake of a user that an actor met, as it would be raised here."""
    waiting: list[BaseException | None] = [error]
    for _ in range(32):  # errors of Ray hold others in two ways, and may hold themselves
        seen = waiting.pop(0) if waiting else None
        if isinstance(seen, PhpqError):
            raise seen from None
        if seen is not None:
            waiting += [getattr(seen, "cause", None), seen.__cause__]


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

    folder: str  # the model in the gallery, on storage that all nodes see
    batch_size: int  # images that the model sees at once
    keep_embeddings: bool
    device: str  # as `phpq.load` takes it
    threads: int  # that decode, and compute on a CPU
    space: Space = "learned"  # of the embeddings


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
                space=work.space,
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
    from phpq.model import load

    folder = Path(work.folder)
    if not folder.is_dir():
        raise ConfigError(
            f"The gallery of {work.folder!r} is not to be seen on {socket.gethostname()!r}. Put it "
            "where all machines of the cluster find it under the same name, as on NFS."
        )
    os.environ["OMP_NUM_THREADS"] = str(work.threads)  # both runtimes read it when they start
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
