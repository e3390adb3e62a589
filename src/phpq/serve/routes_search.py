"""Search: an upload, an id, a URI or a code in, hits out; one query or a batch."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response

from phpq.errors import ConfigError
from phpq.serve import schemas
from phpq.serve.answers import answer, search_named, search_upload
from phpq.serve.parameters import (
    Image,
    OptionalCode,
    OptionalId,
    OptionalUri,
    form_page,
    make_page,
    query_page,
    upload_name,
)
from phpq.serve.services import Services
from phpq.serve.settings import MAX_BATCH, MAX_OFFSET, MAX_TOP_K, MAX_WHERE
from phpq.serve.snapshot import Page


def _batch_schema() -> dict[str, Any]:
    """Return the schema of a batch in one piece: its references would lead nowhere here."""
    schema = schemas.BatchRequest.model_json_schema()
    parts = schema.pop("$defs")
    schema["properties"]["queries"]["items"] = parts["BatchQuery"]
    return schema


_BATCH_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": _batch_schema()},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["image"],
                "properties": {
                    "image": {
                        "type": "array",
                        "items": {"type": "string", "format": "binary"},
                        "minItems": 1,
                        "maxItems": MAX_BATCH,
                    },
                    "top_k": {"type": "integer", "minimum": 1, "maximum": MAX_TOP_K},
                    "offset": {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET},
                    "where": {"type": "string", "maxLength": MAX_WHERE},
                    "label": {"type": "array", "items": {"type": "string"}},
                    "rerank": {"type": "integer", "minimum": 0},
                },
            }
        },
    },
}


def search_routes(services: Services) -> APIRouter:
    """Return the routes that search."""
    router = APIRouter(tags=["search"], responses=schemas.ERRORS)

    @router.get("/search", response_model=schemas.SearchAnswer)
    async def search(
        page: Annotated[Page, Depends(query_page)],
        id: OptionalId = None,
        uri: OptionalUri = None,
        code: OptionalCode = None,
    ) -> Response:
        """Find what looks like an image of the gallery (by id or URI), or has a code like this."""

        def work() -> schemas.SearchAnswer:
            return services.read(
                lambda snapshot: search_named(snapshot, page, id=id, uri=uri, code=code)
            )

        return answer(await services.searches.run(work))

    @router.post("/search", response_model=schemas.SearchAnswer)
    async def search_by_upload(image: Image, page: Annotated[Page, Depends(form_page)]) -> Response:
        """Find what looks like an uploaded image."""
        content = await image.read()
        found = await _search_uploads(services, [(content, upload_name(image.filename))], page)
        return answer(found[0])

    @router.post(
        "/search/batch",
        response_model=schemas.BatchAnswer,
        openapi_extra={"requestBody": _BATCH_BODY},
    )
    async def search_batch(request: Request) -> Response:
        """Search for several images of the gallery (JSON), or several uploads (multipart)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            uploads, page = await _batch_form(request)
            return answer(
                schemas.BatchAnswer(answers=await _search_uploads(services, uploads, page))
            )
        batch = _batch_json(await request.body())
        page = make_page(batch.top_k, batch.offset, batch.where, batch.label, rerank=batch.rerank)

        def work() -> schemas.BatchAnswer:
            return services.read(
                lambda snapshot: schemas.BatchAnswer(
                    answers=[
                        search_named(snapshot, page, id=query.id, uri=query.uri, code=query.code)
                        for query in batch.queries
                    ]
                )
            )

        return answer(await services.searches.run(work))

    return router


async def _search_uploads(
    services: Services, uploads: list[tuple[bytes, str]], page: Page
) -> list[schemas.SearchAnswer]:
    def work() -> list[schemas.SearchAnswer]:
        embeddings = [services.embed(content, name) for content, name in uploads]
        # All from one snapshot.
        return services.read(
            lambda snapshot: [search_upload(snapshot, vector, page) for vector in embeddings]
        )

    return await services.uploads.run(work)


def _batch_json(body: bytes) -> schemas.BatchRequest:
    try:
        return schemas.BatchRequest.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        ) from error


async def _batch_form(request: Request) -> tuple[list[tuple[bytes, str]], Page]:
    async with request.form(max_files=MAX_BATCH, max_fields=200) as form:
        files = [part for part in form.getlist("image") if isinstance(part, UploadFile)]
        if not files:
            raise ConfigError("The form has no image; send at least one file named 'image'.")
        values: dict[str, Any] = {
            name: form[name] for name in ("top_k", "offset", "where", "rerank") if name in form
        }
        values["label"] = [part for part in form.getlist("label") if isinstance(part, str)]
        # The same rules as for JSON; the query stands for the uploads.
        try:
            batch = schemas.BatchRequest(queries=[schemas.BatchQuery(id="upload")], **values)
        except ValidationError as error:
            raise RequestValidationError(
                [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
            ) from error
        page = make_page(batch.top_k, batch.offset, batch.where, batch.label, rerank=batch.rerank)
        return [(await part.read(), upload_name(part.filename)) for part in files], page
