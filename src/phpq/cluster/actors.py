"""How many actors a cluster has room for: its nodes in, their number and what each is given out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phpq.errors import ConfigError

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
    """Divide a cluster among actors.

    Args:
        nodes: The resources of each living node, as in {"CPU": 8, "GPU": 1}.
        wanted: Actors at most; 0 is as many as there is room for.
        gpus: Use GPUs where there are any: one per actor, and no actors elsewhere.

    Raises:
        ConfigError: If there is room for none.
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
