"""Requests that nobody would send on purpose: made up from the OpenAPI document by schemathesis.

Whatever comes, the answer is one that the document describes, never a 5xx, and never late.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from phpq.gallery import Gallery
from phpq.serve import create_app
from served_galleries import TOKEN, copy_gallery, running, shared_gallery

EXAMPLES = 15
SECONDS = 15.0  # for one answer, on a machine that has other things to do


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = copy_gallery(tmp_path_factory.mktemp("fuzz"))
    with running(folder, writable=True, token=TOKEN) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def _operations() -> list[tuple[str, str]]:
    app = create_app(Gallery.open(shared_gallery(), device="cpu"))
    app.state.services.close()
    return [
        (path, method) for path, methods in app.openapi()["paths"].items() for method in methods
    ]


@pytest.mark.parametrize(("path", "method"), _operations(), ids=lambda part: str(part))
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_no_request_is_answered_by_a_5xx(schema: Any, path: str, method: str, mode: Any) -> None:
    operation = schema[path][method]
    raw = operation.definition.raw
    parameters = [each for each in raw.get("parameters", ()) if each["in"] != "header"]
    if mode.is_negative and not parameters and "requestBody" not in raw:
        return  # nothing can be wrong about it

    @seed(5)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        start = time.monotonic()
        answer = case.call(headers={"Authorization": f"Bearer {TOKEN}"})
        assert time.monotonic() - start < SECONDS
        assert answer.status_code < 500, answer.text
        documented = {int(code) for code in raw["responses"] if code.isdigit()}
        assert answer.status_code in documented | {405}, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"kind", "message", "request_id"}

    ask()
