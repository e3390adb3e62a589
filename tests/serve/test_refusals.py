"""Errors become statuses, kinds and one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from phpq import errors
from phpq.serve._refusals import (
    Refused,
    busy,
    describe_invalid,
    error_body,
    kind_of,
    status_of,
    too_large,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UnknownNameError("x"), 404),
        (errors.BadImageError("x"), 422),
        (errors.DataError("x"), 409),
        (errors.ConfigError("x"), 400),
        (errors.ShapeError("x"), 400),
        (errors.FormatError("x"), 503),
        (errors.NotTrainedError("x"), 400),
        (busy("x"), 503),
        (too_large("9 bytes", 3), 413),
    ],
)
def test_every_error_has_a_status(error: errors.PhpqError, status: int) -> None:
    assert status_of(error) == status


def test_kinds_are_the_names_of_the_library() -> None:
    assert kind_of(errors.BadImageError("x")) == "BadImageError"
    assert kind_of(too_large("9 bytes", 3)) == "BadImageError"
    assert kind_of(busy("x")) == "BusyError"


def test_headers_say_when_to_come_back_and_how_to_prove_oneself() -> None:
    assert busy("x").headers == {"Retry-After": "1"}
    assert Refused(401, "AccessError", "x").headers == {"WWW-Authenticate": "Bearer"}
    assert Refused(403, "AccessError", "x").headers == {}


def test_the_body_has_one_shape() -> None:
    assert error_body("A", "b", "c") == {"error": {"kind": "A", "message": "b", "request_id": "c"}}


def test_an_invalid_field_is_named_with_what_was_seen() -> None:
    problems: list[Mapping[str, Any]] = [
        {"loc": ("query", "top_k"), "msg": "too small", "input": "0"},
        {"loc": ()},
    ]
    assert describe_invalid(problems) == ("top_k='0' is not allowed: too small. (1 more problems)")
    assert describe_invalid([{"loc": ("body",), "input": b"\xff"}]) == (
        "body is not allowed: it is not valid."
    )
    assert describe_invalid([{"loc": ("body", "image"), "type": "missing"}]).startswith(
        "image is missing."
    )
    assert describe_invalid([])
