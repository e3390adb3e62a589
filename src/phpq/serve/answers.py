"""Records and scores in, what goes over the wire out."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel
from starlette.responses import Response

from phpq.codes import CodeArray, FloatArray
from phpq.errors import ConfigError
from phpq.gallery.records import Record
from phpq.serve import schemas
from phpq.serve.files import has_file
from phpq.serve.services import timed
from phpq.serve.snapshot import Page, Snapshot


def search_record(
    snapshot: Snapshot, place: int, record: Record, page: Page, *, kind: str
) -> schemas.SearchAnswer:
    """Search for what looks like an image of the gallery, itself left out.

    Args:
        snapshot: What is searched.
        place: Of the image in the order of insertion.
        record: The image.
        page: Which hits.
        kind: "id" or "uri", as it was asked for.
    """
    echo = schemas.QueryEcho(
        kind="uri" if kind == "uri" else "id",
        id=record.id,
        uri=record.uri if kind == "uri" else None,
        label=record.label,
        code=record.code.tobytes().hex(),
    )
    return _answer(snapshot, snapshot.query_of(record), page, echo=echo, leave_out=place)


def search_code(snapshot: Snapshot, text: str, page: Page) -> schemas.SearchAnswer:
    """Search for a code in hex."""
    code = parse_code(text, snapshot)
    echo = schemas.QueryEcho(kind="code", code=code.tobytes().hex())
    return _answer(snapshot, snapshot.codebooks.decode(code[None])[0], page, echo=echo)


def search_upload(snapshot: Snapshot, embedding: FloatArray, page: Page) -> schemas.SearchAnswer:
    """Search for an image that was embedded, (D,) float32."""
    code = snapshot.codebooks.encode(embedding[None])[0]
    echo = schemas.QueryEcho(kind="upload", code=code.tobytes().hex())
    return _answer(snapshot, embedding, page, echo=echo)


def search_named(
    snapshot: Snapshot, page: Page, *, id: str | None, uri: str | None, code: str | None
) -> schemas.SearchAnswer:
    """Search for exactly one of an id, a URI or a code."""
    given = [name for name, text in (("id", id), ("uri", uri), ("code", code)) if text is not None]
    if len(given) != 1:
        seen = " and ".join(given) or "nothing"
        raise ConfigError(f"The query names {seen}; give exactly one of id, uri and code.")
    if code is not None:
        return search_code(snapshot, code, page)
    place, record = snapshot.find(id) if id is not None else snapshot.find_uri(uri or "")
    return search_record(snapshot, place, record, page, kind=given[0])


def parse_code(text: str, snapshot: Snapshot) -> CodeArray:
    """Read a code in hex: (M,) uint8."""
    books, size = snapshot.codebooks.num_codebooks, snapshot.codebooks.codebook_size
    try:
        code = np.frombuffer(bytes.fromhex(text), np.uint8)
        good = len(code) == books and len(text) == 2 * books and bool((code < size).all())
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"code={text[:80]!r} is no code of this gallery; expected {2 * books} hex digits, "
            f"{books} bytes below {size}."
        )
    return code


def item(record: Record) -> schemas.Item:
    """Describe one image."""
    return schemas.Item(
        id=record.id,
        label=record.label,
        metadata=plain(record.metadata),
        code=record.code.tobytes().hex(),
        has_original=has_file(record),
        thumbnail=thumbnail_address(record.id),
    )


def thumbnail_address(id: str) -> str:
    """Return where the thumbnail of an image is."""
    return f"/api/v1/thumbnail?id={quote(id, safe='')}"


def plain(metadata: Any) -> dict[str, Any]:
    """Return metadata that JSON can hold: dates as text, no NaN."""
    return {str(name): _plain(value) for name, value in metadata.items()}


def answer(content: BaseModel, *, status: int = 200) -> Response:
    """Turn a checked answer into bytes, once."""
    return Response(content.model_dump_json(), status, media_type="application/json")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def _answer(
    snapshot: Snapshot,
    query: FloatArray,
    page: Page,
    *,
    echo: schemas.QueryEcho,
    leave_out: int | None = None,
) -> schemas.SearchAnswer:
    found, seconds = timed(lambda: snapshot.search(query, page, leave_out=leave_out))
    hits = [
        schemas.HitAnswer(
            rank=rank,
            id=record.id,
            score=score,
            share=min(max(score / found.best, 0.0), 1.0) if found.best > 0 else 0.0,
            label=record.label,
            metadata=plain(record.metadata),
            thumbnail=thumbnail_address(record.id),
            has_original=has_file(record),
        )
        for rank, (record, score) in enumerate(
            zip(found.records, found.scores, strict=True), start=page.offset + 1
        )
    ]
    return schemas.SearchAnswer(
        query=echo,
        top_k=page.top_k,
        offset=page.offset,
        total=found.total,
        seconds=seconds,
        hits=hits,
    )
