"""One Ray Data pipeline: references to stretches of images in, encoded stretches out, in order.

Ray Data runs in a process of the cluster, not in one that came through ray://; for such a one a
`Conductor`, an actor without a CPU of its own, runs the pipeline.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator
from typing import Any

from phpq.cluster.plan import Plan
from phpq.cluster.worker import EncodingActor, Stretch, Work


def encode_stretches(
    stretches: list[Any], first: int, work: Work, plan: Plan
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
            compute=ray.data.ActorPoolStrategy(size=min(plan.actors, len(tickets))),
            fn_constructor_kwargs={"work": work, "stretches": stretches},
            num_cpus=plan.cpus,
            num_gpus=plan.gpus,
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
    """A pipeline that another process asks for its results, one after the other.

    Args:
        stretches: Ray references.
        first: The first one that is wanted.
        work: What the actors do.
        plan: How many there are.
    """

    def __init__(self, stretches: list[Any], first: int, work: Work, plan: Plan) -> None:
        self._rows = encode_stretches(stretches, first, work, plan)

    def next(self) -> tuple[int, Stretch] | None:
        """Return the next stretch, or None after the last."""
        return next(self._rows, None)


def through_conductor(
    ray: Any, stretches: list[Any], first: int, work: Work, plan: Plan
) -> Generator[tuple[int, Stretch], None, None]:
    """Do as `encode_stretches` from a process that came through ray://."""
    actor = ray.remote(Conductor).options(num_cpus=0)
    conductor = actor.remote(stretches, first, work, plan)
    try:
        while (row := ray.get(conductor.next.remote())) is not None:
            yield row
    finally:
        ray.kill(conductor)  # and the actors that it made go with it
