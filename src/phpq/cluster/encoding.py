"""Bulk encoding on Ray Data: images in, records in their order out, and their rows written.

    with ray_engine(gallery.path, "auto") as engine:
        gallery.add("s3://bucket/birds/", engine=engine)

Actors hold the model of the gallery and encode stretches of the source, in the batches that one
process would encode. This process numbers the records, has workers write them as fragments of the
dataset, and commits them. Why so: docs/decisions/0009-ray-encoding.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phpq.cluster.connection import LOCAL, connected, first_line
from phpq.cluster.pipeline import (
    Actors,
    Stretch,
    Work,
    encode_stretches,
    fit_actors,
    through_conductor,
)
from phpq.data.places import is_uri
from phpq.errors import ConfigError, PhpqError
from phpq.gallery.ingest import Encoded
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

log = logging.getLogger(__name__)


@contextmanager
def ray_engine(
    folder: str | Path, address: str = LOCAL, *, actors: int = 0, device: str = "auto"
) -> Iterator[RayEngine]:
    """Connect to a Ray cluster for `Gallery.add`, and leave it at the end.

    Args:
        folder: The gallery; all nodes see it under this name.
        address: "local" starts a cluster on this machine; also "auto", HOST:PORT, ray://HOST:PORT.
        actors: Models at work at most; 0 is one per GPU, or what the CPUs have room for.
        device: "auto" takes the GPUs of the cluster where it has any; "cuda" and "cpu" insist.

    Raises:
        ConfigError: If Ray is not installed, or there is no such cluster.
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
    ) -> Generator[list[Encoded], None, None]:
        """Do as `phpq.gallery.ingest.encode_items`; the actors load the gallery's own model."""
        del model
        actors = self._fit()
        device = "cuda" if actors.gpus else "cpu"
        work = Work(str(self._folder), batch_size, keep_embeddings, device, actors.cpus)
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
