"""Actors fit a cluster; a pipeline encodes stretches, here or through a conductor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.cluster import pipeline
from phpq.cluster.pipeline import (
    Actors,
    Conductor,
    EncodingActor,
    Stretch,
    Work,
    fit_actors,
    through_conductor,
)
from phpq.errors import ConfigError
from phpq.gallery import Gallery
from phpq.gallery.ingest import encode_items
from phpq.gallery.sources import Item
from picture_files import write_image

WORK, ACTORS = Work("/g", 4, False, "cpu", 1), Actors(2, 1, 0)


class _RayError(Exception):
    """What a cluster raises."""


class _Ray:
    """Actors in this process: methods are called where they are asked for."""

    exceptions = SimpleNamespace(RayError=_RayError)

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def remote(self, kind: Any) -> Any:
        def make(*arguments: Any) -> Any:
            made = kind(*arguments)
            return SimpleNamespace(next=SimpleNamespace(remote=made.next))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def get(self, answer: Any) -> Any:
        return answer

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the pipeline by one that encodes nothing; returns how far each came."""
    ends: list[int] = []

    def encode(
        stretches: list[Any], first: int, work: Work, actors: Actors
    ) -> Generator[tuple[int, Stretch], None, None]:
        assert (work, actors) == (WORK, ACTORS)
        number = first
        try:
            for number in range(first, len(stretches)):
                if stretches[number] == "dead":
                    raise _RayError("a node died")
                yield number, Stretch(())
        finally:
            ends.append(number)

    monkeypatch.setattr(pipeline, "encode_stretches", encode)
    return ends


def numbers(rows: Generator[tuple[int, Stretch], None, None]) -> Callable[[], list[int]]:
    return lambda: [number for number, _ in rows]


def test_a_conductor_hands_out_what_the_pipeline_yields(closed: list[int]) -> None:
    conductor = Conductor(["a", "b", "c"], 1, WORK, ACTORS)
    first = conductor.next()
    assert first is not None
    assert first[0] == 1
    assert [conductor.next() is None for _ in range(3)] == [False, True, True]
    assert closed == [2]


def test_a_client_sees_the_same_rows_and_leaves_nothing_behind(closed: list[int]) -> None:
    ray = _Ray()
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, ACTORS)
    assert numbers(rows)() == [0, 1, 2]
    assert len(ray.killed) == 1
    rows = through_conductor(ray, ["a", "b", "dead"], 1, WORK, ACTORS)
    with pytest.raises(_RayError, match="a node died"):
        numbers(rows)()
    assert len(ray.killed) == 2
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, ACTORS)
    next(rows)
    rows.close()  # as after Ctrl-C
    assert closed[:2] == [2, 2]
    assert len(ray.killed) == 3


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"), keep_embeddings=True)


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    """References are the things themselves: no cluster is needed to look at one actor."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda thing: thing))


def images(folder: Path, count: int) -> list[Item]:
    files = [write_image(folder / f"{n}.png", (9 * n % 256, 40, 90)) for n in range(count)]
    files[1].write_bytes(b"no image")
    return [Item(file.name, file, "wren", {"n": n}) for n, file in enumerate(files)]


@pytest.mark.usefixtures("references")
def test_an_actor_encodes_as_this_process_does(gallery: Gallery, tmp_path: Path) -> None:
    known = images(tmp_path, 11)
    stretches = [known[:8], known[8:]]
    work = Work(str(gallery.path), 4, True, "cpu", 1)
    actor = EncodingActor(work, stretches)
    answer = actor({"number": np.array([1, 0])})
    assert answer["number"].tolist() == [1, 0]
    batches = [batch for place in (1, 0) for batch in answer["stretch"][place].batches]
    wanted = list(encode_items(known, gallery.model, batch_size=4, keep_embeddings=True))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    for got, here in zip(chain(*batches), chain(*wanted), strict=True):
        assert got.reason == here.reason
        assert (got.record is None) == (here.record is None)
        assert got.item.image == b""  # pixels do not travel back
        if got.record is not None and here.record is not None:
            assert _plain(got.record) == _plain(here.record)


def _plain(record: Any) -> tuple[Any, ...]:
    code, embedding = record.code.tobytes(), record.embedding.tobytes()
    about = (record.id, record.uri, record.label, record.sha256, dict(record.metadata))
    return (*about, code, embedding)


@pytest.mark.usefixtures("references")
def test_a_gallery_that_a_machine_does_not_see_is_named(tmp_path: Path) -> None:
    actor = EncodingActor(Work(str(tmp_path / "none"), 4, False, "cpu", 1), [[]])
    with pytest.raises(ConfigError, match=r"none' is not to be seen on .*all machines"):
        actor({"number": np.array([0])})


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
