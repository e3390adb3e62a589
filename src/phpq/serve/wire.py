"""Messages between the server and its decoders: a small JSON head and raw bytes, length first."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct(">II")  # bytes of the head, bytes of the content
_LONGEST_HEAD = 1 << 20


def send(stream: BinaryIO, head: dict[str, Any], content: bytes = b"") -> None:
    """Write one message.

    Args:
        stream: Open for writing.
        head: Plain data.
        content: Anything.
    """
    encoded = json.dumps(head).encode()
    stream.write(_LENGTHS.pack(len(encoded), len(content)))
    stream.write(encoded)
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Read one message.

    Raises:
        EOFError: If the other side is gone.
    """
    head, content = _LENGTHS.unpack(_exactly(stream, _LENGTHS.size))
    if head > _LONGEST_HEAD:
        raise EOFError(f"a head of {head} bytes")
    return json.loads(_exactly(stream, head)), _exactly(stream, content)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = stream.read(count)
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
