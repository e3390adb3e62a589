"""Who may ask what: host, origin and token of a request in, a refusal or nothing out."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from phpq.serve.refusals import Refused
from phpq.serve.settings import ServerSettings, is_loopback

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"geolocation=(), microphone=(), payment=(), usb=()"),
)
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_host(host: str, settings: ServerSettings) -> None:
    """Refuse a request that came to another name than this server has.

    A web page may point its own name at 127.0.0.1 and read what is served there as its own
    (DNS rebinding); such a request still carries the name of that page.
    """
    name = _host_name(host)
    if settings.allowed_hosts:
        allowed = name in {known.lower() for known in settings.allowed_hosts}
    else:
        allowed = not settings.on_loopback or is_loopback(name)
    if not allowed:
        raise Refused(
            403,
            "AccessError",
            f"The host {host!r} is not served here. Use http://127.0.0.1:{settings.port}, or start "
            "the server with --allow-host NAME.",
        )


def check_origin(method: str, origin: str, host: str, settings: ServerSettings) -> None:
    """Refuse what the page of another site sends through somebody's browser.

    Args:
        method: Of HTTP; reading needs no check, browsers keep the answer from other sites.
        origin: The header; empty where no browser sent the request.
        host: The header of the request.
        settings: Of the server.
    """
    if method in _READS or not origin:
        return
    if origin in settings.cors_origins or "*" in settings.cors_origins:
        return
    if origin != "null" and urlsplit(origin).netloc.lower() == host.lower():
        return
    raise Refused(
        403,
        "AccessError",
        f"A page of {origin!r} may not send requests to this server. Start it with "
        f"--allow-origin ORIGIN to let it.",
    )


def check_token(header: str, settings: ServerSettings) -> None:
    """Refuse who may not write."""
    if not settings.writable or settings.token is None:
        raise Refused(
            403,
            "AccessError",
            "This server is read-only. Start it with --writable and a token to add and delete.",
        )
    scheme, _, given = header.partition(" ")
    # In constant time: how long it takes must not tell how much of a guess was right.
    same = hmac.compare_digest(given.strip().encode("utf-8"), settings.token.encode())
    if scheme.lower() != "bearer" or not same:
        raise Refused(
            401,
            "AccessError",
            "Adding and deleting need the token of the server: send the header "
            "'Authorization: Bearer TOKEN'.",
        )


def _host_name(host: str) -> str:
    """Return the name of a Host header without the port; "" if it cannot be read."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
