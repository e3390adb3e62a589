from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from phpq.cluster import pipeline
from phpq.cluster.pipeline import Conductor, through_conductor
from phpq.cluster.plan import Plan
from phpq.cluster.worker import Stretch, Work

WORK, PLAN = Work("/g", 4, False, "cpu", 1), Plan(2, 1, 0)


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
        stretches: list[Any], first: int, work: Work, plan: Plan
    ) -> Generator[tuple[int, Stretch], None, None]:
        assert (work, plan) == (WORK, PLAN)
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
    conductor = Conductor(["a", "b", "c"], 1, WORK, PLAN)
    first = conductor.next()
    assert first is not None
    assert first[0] == 1
    assert [conductor.next() is None for _ in range(3)] == [False, True, True]
    assert closed == [2]


def test_a_client_sees_the_same_rows_and_leaves_nothing_behind(closed: list[int]) -> None:
    ray = _Ray()
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, PLAN)
    assert numbers(rows)() == [0, 1, 2]
    assert len(ray.killed) == 1
    rows = through_conductor(ray, ["a", "b", "dead"], 1, WORK, PLAN)
    with pytest.raises(_RayError, match="a node died"):
        numbers(rows)()
    assert len(ray.killed) == 2
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, PLAN)
    next(rows)
    rows.close()  # as after Ctrl-C
    assert closed[:2] == [2, 2]
    assert len(ray.killed) == 3
