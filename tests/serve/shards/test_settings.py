"""What cannot be a number of shards is said before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from phpq.errors import ConfigError
from phpq.serve.shards.settings import Sharding


def test_processes_are_counted() -> None:
    assert Sharding(shards=3, replicas=2).processes == 6
    assert Sharding(address="10.0.0.1:6379").address == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"shards": 0}, r"--shards 0 is not allowed: it must be 1 to 1024"),
        ({"shards": 1025}, r"--shards 1025"),
        ({"replicas": 0}, r"--replicas 0 is not allowed: it must be 1 to 64"),
        ({"retry_seconds": 0.0}, r"retry_seconds=0.0 is not allowed"),
        ({"load_seconds": float("nan")}, r"load_seconds=nan"),
        ({"address": "birds"}, r"--ray 'birds' cannot be used.*HOST:PORT"),
        ({"address": "ray://head:1"}, r"on one of its machines"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Sharding(**wrong)
