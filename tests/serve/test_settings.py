"""Settings are checked when they are made, and say what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from phpq.errors import ConfigError
from phpq.serve.settings import ServerSettings, Sharding, is_loopback


def test_the_defaults_are_the_safe_ones() -> None:
    settings = ServerSettings()
    assert settings.on_loopback
    assert not settings.writable
    assert settings.cors_origins == ()
    assert settings.threads >= 2
    assert ServerSettings(workers=7).threads == 7


def test_a_token_is_never_shown() -> None:
    assert "secret" not in repr(ServerSettings(token="a-long-secret-of-mine"))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"port": 70000}, "port=70000 is not allowed: it must be 0 to 65535"),
        ({"decoders": 0}, "decoders=0"),
        ({"max_upload_bytes": 0}, "max_upload_bytes=0"),
        ({"rate": -1}, "rate=-1"),
        ({"decode_seconds": 0}, "decode_seconds=0"),
        ({"workers": "many"}, "workers='many'"),
        ({"writable": True}, "writable=True needs a token"),
        ({"token": "short"}, "The token has 5 characters.*at least 16"),
        ({"token": "with a space in the middle"}, "without spaces"),
        ({"token": "x" * 20, "writable": True, "cors_origins": ("*",)}, "every web page write"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ServerSettings(**values)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("192.168.1.2", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_name_and_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


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
