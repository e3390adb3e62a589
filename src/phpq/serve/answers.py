"""Queries and a view in, what goes over the wire out."""

from __future__ import annotations

import time
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel
from starlette.responses import Response

from phpq.codes import CodeArray, FloatArray
from phpq.errors import ConfigError
from phpq.gallery.records import Record
from phpq.gallery.view import GalleryView, Page
from phpq.hits import plain_values
from phpq.serve import schemas
from phpq.serve.files import has_file
from phpq.serve.filters import check_where


def search_named(view: GalleryView, query: schemas.BatchQuery, page: Page) -> schemas.SearchAnswer:
    """Search for what looks like an image of the gallery, itself left out, or has a code."""
    given = query.model_dump(exclude_none=True)
    if len(given) != 1:
        seen = " and ".join(given) or "nothing"
        raise ConfigError(f"The query names {seen}; give exactly one of id, uri and code.")
    if query.code is not None:
        code = parse_code(query.code, view)
        echo = schemas.QueryEcho(kind="code", code=code.tobytes().hex())
        return _search(view, view.codebooks.decode(code[None])[0], page, echo)
    place, record = view.find_uri(query.uri) if query.uri is not None else view.find(query.id or "")
    echo = schemas.QueryEcho(
        kind="id" if query.uri is None else "uri",
        id=record.id,
        uri=query.uri,
        label=record.label,
        code=record.code.tobytes().hex(),
    )
    return _search(view, view.query_of(record), page, echo, leave_out=place)


def search_upload(view: GalleryView, embedding: FloatArray, page: Page) -> schemas.SearchAnswer:
    """Search for an image that was embedded, (D,) float32."""
    code = view.codebooks.encode(embedding[None])[0]
    return _search(
        view, embedding, page, schemas.QueryEcho(kind="upload", code=code.tobytes().hex())
    )


def parse_code(text: str, view: GalleryView) -> CodeArray:
    """Read a code in hex: (M,) uint8."""
    books, size = view.codebooks.num_codebooks, view.codebooks.codebook_size
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
        metadata=plain_values(record.metadata),
        code=record.code.tobytes().hex(),
        has_original=has_file(record.uri),
        thumbnail=thumbnail_address(record.id),
    )


def thumbnail_address(id: str) -> str:
    """Return where the thumbnail of an image is."""
    return f"/api/v1/thumbnail?id={quote(id, safe='')}"


def answer(content: BaseModel, *, status: int = 200) -> Response:
    """Turn a checked answer into bytes, once."""
    return Response(content.model_dump_json(), status, media_type="application/json")


def _search(
    view: GalleryView,
    query: FloatArray,
    page: Page,
    echo: schemas.QueryEcho,
    *,
    leave_out: int | None = None,
) -> schemas.SearchAnswer:
    if page.where is not None:
        check_where(page.where, tuple(view.columns))
    start = time.perf_counter()
    found = view.search(query, page, leave_out=leave_out)
    seconds = time.perf_counter() - start
    verdict = found.verdict
    return schemas.SearchAnswer(
        query=echo,
        top_k=page.top_k,
        offset=page.offset,
        total=found.total,
        best=found.best,
        seconds=seconds,
        verdict=None
        if verdict is None
        else schemas.VerdictAnswer(label=verdict.label, share=verdict.share),
        hits=[
            schemas.HitAnswer(
                rank=hit.rank,
                id=hit.id,
                score=hit.score,
                share=hit.share,
                label=hit.label,
                metadata=plain_values(hit.metadata),
                thumbnail=thumbnail_address(hit.id),
                has_original=has_file(hit.uri),
            )
            for hit in found.hits
        ],
    )
