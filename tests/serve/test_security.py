"""Host, origin and token: who is let in and who is not."""

from __future__ import annotations

import pytest

from phpq.serve.refusals import Refused
from phpq.serve.security import POLICY, check_host, check_origin, check_token
from phpq.serve.settings import ServerSettings

TOKEN = "0123456789abcdef"
LOCAL = ServerSettings()
OPEN = ServerSettings(host="0.0.0.0")
NAMED = ServerSettings(host="0.0.0.0", allowed_hosts=("Birds.example.org",))
WRITABLE = ServerSettings(token=TOKEN, writable=True)


@pytest.mark.parametrize(
    ("host", "settings", "allowed"),
    [
        ("127.0.0.1:8000", LOCAL, True),
        ("localhost", LOCAL, True),
        ("[::1]:8000", LOCAL, True),
        ("evil.example.org", LOCAL, False),
        ("evil.example.org:8000", LOCAL, False),
        ("127.0.0.1.evil.example.org", LOCAL, False),
        ("localhost@evil.example.org", LOCAL, False),
        ("", LOCAL, False),
        ("[::1", LOCAL, False),
        ("anything.example.org", OPEN, True),
        ("birds.example.org:80", NAMED, True),
        ("other.example.org", NAMED, False),
    ],
)
def test_only_own_names_are_served(host: str, settings: ServerSettings, allowed: bool) -> None:
    if allowed:
        check_host(host, settings)
    else:
        with pytest.raises(Refused, match="not served here") as caught:
            check_host(host, settings)
        assert caught.value.status == 403


@pytest.mark.parametrize(
    ("method", "origin", "allowed"),
    [
        ("POST", "", True),
        ("POST", "http://127.0.0.1:8000", True),
        ("GET", "https://evil.example.org", True),
        ("POST", "https://evil.example.org", False),
        ("DELETE", "http://127.0.0.1:9000", False),
        ("POST", "null", False),
        ("POST", "http://127.0.0.1:8000.evil.example.org", False),
    ],
)
def test_pages_of_other_sites_cannot_send(method: str, origin: str, allowed: bool) -> None:
    if allowed:
        check_origin(method, origin, "127.0.0.1:8000", LOCAL)
    else:
        with pytest.raises(Refused, match="may not send"):
            check_origin(method, origin, "127.0.0.1:8000", LOCAL)


def test_a_named_origin_can_send() -> None:
    settings = ServerSettings(cors_origins=("https://birds.example.org",))
    check_origin("POST", "https://birds.example.org", "127.0.0.1", settings)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \u00e9" * 9]
)
def test_a_wrong_token_is_refused(header: str) -> None:
    with pytest.raises(Refused) as caught:
        check_token(header, WRITABLE)
    assert caught.value.status == 401


def test_the_right_token_opens_only_a_writable_server() -> None:
    check_token(f"Bearer {TOKEN}", WRITABLE)
    check_token(f"bearer  {TOKEN} ", WRITABLE)
    with pytest.raises(Refused, match="read-only") as caught:
        check_token(f"Bearer {TOKEN}", ServerSettings(token=TOKEN))
    assert caught.value.status == 403


def test_the_policy_keeps_scripts_and_frames_of_others_out() -> None:
    assert POLICY.startswith("default-src 'self'; img-src 'self' data: blob:")
    assert "unsafe" not in POLICY
    assert "frame-ancestors 'none'" in POLICY
