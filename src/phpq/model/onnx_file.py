"""Facts in the metadata of an ONNX file, and a seal: checksums that reveal any change.

    seal(path, facts)           at the end of an export
    facts = read_facts(path)    in a millisecond: weights are skipped
    check_sealed(path)          reads every byte, before the file is used

Needs neither onnx nor torch: metadata are the last fields of the file, and a field of the format
(protocol buffers) is a tag, a length and that many bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from phpq.errors import FormatError

_METADATA = 14  # number of the metadata field; in an entry 1 is the key, 2 the value
_SEAL = "phpq_seal"
_BLOCK = 1 << 20  # bytes that are hashed at once


def seal(path: Path, facts: Mapping[str, str]) -> None:
    """Append facts to an ONNX file, and checksums of them and of all earlier bytes."""
    content = path.read_bytes()
    checksums = {"bytes": len(content), "content": _sha(content), "facts": _facts_sha(facts)}
    with path.open("ab") as file:
        file.write(_encoded({**facts, _SEAL: json.dumps(checksums)}))


def read_facts(path: Path) -> dict[str, str]:
    """Read the facts of a sealed file; a FormatError if they are missing or changed."""
    return _read(path)[0]


def check_sealed(path: Path) -> None:
    """Check the whole content of a sealed file; a FormatError if a byte was changed."""
    _, left, checksum = _read(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(min(left, _BLOCK)):
            digest.update(block)
            left -= len(block)
    if left or digest.hexdigest() != checksum:
        raise _damaged(path, "its checksum is wrong")


def _read(path: Path) -> tuple[dict[str, str], int, str]:
    """Return the facts, the number of bytes before them, and the checksum of these."""
    found = []
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while file.tell() < size:
                start = file.tell()
                number, length = _header(file)
                if number == _METADATA:
                    end, texts = file.tell() + length, {}
                    while file.tell() < end:
                        part, count = _header(file)
                        texts[part] = file.read(count).decode()
                    found.append((start, texts[1], texts[2]))
                else:
                    file.seek(length, os.SEEK_CUR)
            stored = json.loads({key: value for _, key, value in found}[_SEAL])
            before, checksum, facts_checksum = (
                int(stored["bytes"]),
                stored["content"],
                stored["facts"],
            )
            # Without the metadata of the exporter itself.
            entries = {key: value for start, key, value in found if start >= before}
            file.seek(before)
            as_written = file.read() == _encoded(entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "it has no seal of phpq") from error
    del entries[_SEAL]
    if not as_written or facts_checksum != _facts_sha(entries):
        raise _damaged(path, "what it says of itself was changed")
    return entries, before, str(checksum)


def _header(file: BinaryIO) -> tuple[int, int]:
    """Read the start of a field: its number, and how many bytes follow (0 for a plain number)."""
    tag = _varint(file)
    if tag & 7 == 2:
        return tag >> 3, _varint(file)
    if tag & 7:
        raise ValueError("a kind of field that models do not have")
    _varint(file)
    return tag >> 3, 0


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while shift < 64:
        byte = file.read(1)[0] if file.peek(1) else -1  # type: ignore[attr-defined]
        if byte < 0:
            break
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("the file ends within a number")


def _encoded(entries: Mapping[str, str]) -> bytes:
    pairs = ((key.encode(), value.encode()) for key, value in entries.items())
    return b"".join(_field(_METADATA, _field(1, key) + _field(2, value)) for key, value in pairs)


def _field(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _facts_sha(facts: Mapping[str, str]) -> str:
    return _sha(json.dumps(dict(facts), sort_keys=True).encode())


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _damaged(path: Path, reason: str) -> FormatError:
    return FormatError(
        f"{str(path)!r} cannot be used: {reason}. Write it again, where the weights are beside it "
        f"and phpq[train] is installed, with: phpq export {path.parent}"
    )
