"""One app for all tests that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from served_galleries import served


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with served() as client:
        yield client
