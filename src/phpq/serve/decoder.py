"""A process that decodes images for the server: `python -m phpq.serve.decoder`.

Image parsers are the part of a server that strangers reach most easily. Here a parser that hangs,
crashes or eats memory takes with it a process that is replaced, and nothing else.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO

from PIL import Image

from phpq.config import DataConfig
from phpq.data.decode import decode_square, read_image
from phpq.errors import BadImageError
from phpq.serve.wire import receive, send

_BYTES_A_PIXEL = 32  # several copies of an image, and what decoders need themselves
_BASE_BYTES = 2 << 30  # the interpreter and its libraries, address space rather than memory
_JPEG_QUALITY = 85


def main() -> None:
    """Answer requests from stdin on stdout until stdin ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    send(answers, {"ready": True})
    limited = False
    while True:
        try:
            head, content = receive(requests)
        except EOFError:
            return
        if not limited:
            limit_memory(_BASE_BYTES + _BYTES_A_PIXEL * int(head["max_pixels"]))
            limited = True
        answer(answers, head, content)


def answer(stream: BinaryIO, head: dict[str, Any], content: bytes) -> None:
    """Answer one request: {"bad": reason}, or what `perform` gives."""
    try:
        send(stream, *perform(head, content))
    except BadImageError as error:
        send(stream, {"bad": str(error)})
    except MemoryError:
        send(stream, {"bad": f"Cannot read the image {head['name']!r}: it takes too much memory."})


def perform(head: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode one image.

    Args:
        head: "job" is "square", "pixels", "thumbnail" or "check"; "name" is for errors;
            "max_pixels"; for a square "store_size" and "fit", for pixels and thumbnails "size".
        content: The bytes of the file.

    Returns:
        The format of the file and, for a square, (3, S, S) uint8 as bytes; for pixels and
        thumbnails, (h, w, 3) uint8 or a JPEG whose longer side is `size` at most.
    """
    name, most = str(head["name"]), int(head["max_pixels"])
    if head["job"] == "square":
        size = int(head["store_size"])
        config = DataConfig(store_size=size, fit=head["fit"], max_pixels=most)
        square = decode_square(content, config, name=name)
        return {"shape": list(square.shape), "format": format_of(content)}, square.tobytes()
    size = int(head.get("size", 0))
    image = read_image(content, name=name, max_pixels=most, draft=size)
    if head["job"] == "check":
        return {"format": format_of(content), "shape": list(image.size)}, b""
    image.thumbnail((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if head["job"] == "pixels":
        return {"format": "", "shape": [image.height, image.width, 3]}, image.tobytes()
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_JPEG_QUALITY, progressive=True)
    return {"format": "JPEG", "shape": list(image.size)}, stream.getvalue()


def format_of(content: bytes) -> str:
    """Return what Pillow takes a readable file for, as in "JPEG"."""
    with Image.open(io.BytesIO(content)) as image:
        return image.format or ""


def limit_memory(count: int) -> None:
    """Keep this process from taking more than `count` bytes, where the system can."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
