"""The parameters of requests: their types, limits and words, shared by all routes."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from fastapi import File, Form, Query, UploadFile

from phpq.gallery.view import Page
from phpq.serve.settings import MAX_ID, MAX_LABELS, MAX_OFFSET, MAX_TOP_K, MAX_WHERE

_TOP_K = "How many hits."
_OFFSET = "How many better hits to skip."
_WHERE = "A filter, as in: label = 'sparrow' AND year > 2020"
_LABEL = "Only images of these labels."
_RERANK = "Order the first hits by float embeddings; 0 is off."

Id = Annotated[str, Query(max_length=MAX_ID, description="The id of an image of the gallery.")]
OptionalId = Annotated[str | None, Query(max_length=MAX_ID, description="The id of an image.")]
OptionalUri = Annotated[
    str | None, Query(max_length=MAX_ID, description="The URI of an image of the gallery.")
]
OptionalCode = Annotated[str | None, Query(max_length=512, description="A code in hex.")]
Image = Annotated[UploadFile, File(description="An image file.")]


def query_page(
    top_k: Annotated[int, Query(ge=1, le=MAX_TOP_K, description=_TOP_K)] = 10,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET, description=_OFFSET)] = 0,
    where: Annotated[str | None, Query(max_length=MAX_WHERE, description=_WHERE)] = None,
    label: Annotated[list[str] | None, Query(max_length=MAX_LABELS, description=_LABEL)] = None,
    rerank: Annotated[int, Query(ge=0, le=MAX_OFFSET + MAX_TOP_K, description=_RERANK)] = 0,
) -> Page:
    """Read which hits are wanted from the address."""
    return make_page(top_k, offset, where, label, rerank=rerank)


def form_page(
    top_k: Annotated[int, Form(ge=1, le=MAX_TOP_K, description=_TOP_K)] = 10,
    offset: Annotated[int, Form(ge=0, le=MAX_OFFSET, description=_OFFSET)] = 0,
    where: Annotated[str | None, Form(max_length=MAX_WHERE, description=_WHERE)] = None,
    label: Annotated[list[str] | None, Form(max_length=MAX_LABELS, description=_LABEL)] = None,
    rerank: Annotated[int, Form(ge=0, le=MAX_OFFSET + MAX_TOP_K, description=_RERANK)] = 0,
) -> Page:
    """Read which hits are wanted from a form."""
    return make_page(top_k, offset, where, label, rerank=rerank)


def make_page(
    top_k: int, offset: int, where: str | None, labels: list[str] | None, *, rerank: int
) -> Page:
    """Put checked parameters together; an empty filter is none."""
    return Page(
        top_k=top_k,
        offset=offset,
        where=where if where and where.strip() else None,
        labels=tuple(labels or ()),
        rerank=rerank,
    )


def upload_name(filename: str | None) -> str:
    """Return what errors call an upload: the name of its file, without folders."""
    name = PurePosixPath((filename or "").replace("\\", "/")).name[:120]
    return name or "uploaded image"
