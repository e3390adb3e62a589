from __future__ import annotations

import pytest

from phpq.cluster.actors import Actors, fit_actors
from phpq.errors import ConfigError


def test_one_actor_a_gpu_and_none_elsewhere() -> None:
    nodes = [{"CPU": 32, "GPU": 4}, {"CPU": 16, "GPU": 4}, {"CPU": 64}]
    assert fit_actors(nodes) == Actors(8, 4, 1)
    assert fit_actors(nodes, wanted=3) == Actors(3, 4, 1)
    assert fit_actors(nodes, wanted=30) == Actors(8, 4, 1)
    assert fit_actors([{"CPU": 64.0, "GPU": 1.0}]) == Actors(1, 8, 1)


def test_without_gpus_the_cpus_are_divided() -> None:
    assert fit_actors([{"CPU": 16}, {"CPU": 6}, {"CPU": 1}]) == Actors(5, 4, 0)
    assert fit_actors([{"CPU": 1}, {"CPU": 1}, {}]) == Actors(2, 1, 0)
    assert fit_actors([{"CPU": 2}], wanted=2) == Actors(2, 1, 0)
    assert fit_actors([{"CPU": 2}], wanted=1) == Actors(1, 2, 0)
    assert fit_actors([{"CPU": 8, "GPU": 2}], gpus=False) == Actors(2, 4, 0)


@pytest.mark.parametrize("cpus", range(1, 12))
@pytest.mark.parametrize("wanted", range(4))
def test_no_node_is_asked_for_more_than_it_has(cpus: int, wanted: int) -> None:
    actors = fit_actors([{"CPU": cpus}, {"CPU": 3}], wanted=wanted)
    assert 1 <= actors.count <= (cpus // actors.cpus) + (3 // actors.cpus)
    assert not wanted or actors.count <= wanted


def test_a_cluster_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no CPU to encode with: 2 nodes.*--num-cpus"):
        fit_actors([{}, {"memory": 3.0}])
