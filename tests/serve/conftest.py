"""One app for all tests that change nothing, and its twin of three shards: none may tell them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from phpq.gallery.shards import LocalShards
from served_galleries import served


@pytest.fixture(scope="session", params=[1, 3], ids=["one shard", "three shards"])
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with served(shards=LocalShards(request.param)) as client:
        yield client
