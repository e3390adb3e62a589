"""Search: an upload, an id, a URI or a code in, hits out; one query or a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response

from phpq.errors import ConfigError
from phpq.gallery.view import GalleryView, Page
from phpq.serve import schemas
from phpq.serve._answers import answer, search_named, search_upload
from phpq.serve.pointing import (
    Boxes,
    Examples,
    Photos,
    SuggestedBox,
    Uploads,
    examples_reader,
    upload_name,
)
from phpq.serve.schemas import Image, OptionalCode, OptionalId, OptionalUri
from phpq.serve.services import Services
from phpq.serve.settings import MAX_BATCH


def _batch_body() -> dict[str, Any]:
    """Describe both bodies of a batch in one piece: references would lead nowhere here."""
    schema = schemas.BatchRequest.model_json_schema()
    parts = schema.pop("$defs")
    schema["properties"]["queries"]["items"] = parts["BatchQuery"]
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1, "maxItems": MAX_BATCH}
    shared = {name: one for name, one in schema["properties"].items() if name != "queries"}
    form = {"type": "object", "required": ["image"], "properties": {"image": files, **shared}}
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"required": True, "content": content}


def search_routes(services: Services) -> APIRouter:
    """Return the routes that search."""
    router = APIRouter(tags=["search"], responses=schemas.ERRORS)

    @router.get("/search", response_model=schemas.SearchAnswer)
    async def search(
        page: Annotated[Page, Depends(schemas.page_reader(Query))],
        examples: Annotated[Examples, Depends(examples_reader(Query))],
        id: OptionalId = None,
        uri: OptionalUri = None,
        code: OptionalCode = None,
    ) -> Response:
        """Find what looks like an image of the gallery (by id or URI), or has a code like this.

        With examples (more, less), or by those alone.
        """
        query = schemas.BatchQuery(id=id, uri=uri, code=code)
        return answer(await services.read(lambda view: search_named(view, query, page, examples)))

    @router.post("/search", response_model=schemas.SearchAnswer)
    async def search_by_upload(
        image: Photos,
        page: Annotated[Page, Depends(schemas.page_reader(Form))],
        examples: Annotated[Examples, Depends(examples_reader(Form))],
        box: Boxes = None,
    ) -> Response:
        """Find what looks like an uploaded image, or like several of the same thing."""
        uploads = await Uploads.read(image, box)

        def work(view: GalleryView) -> schemas.SearchAnswer:
            photos, boxes = uploads.embed(services, view)
            return search_upload(view, photos, page, examples, boxes)

        return answer(await services.uploads.run(services.views.read, work))

    _add_suggestions(router, services)

    @router.post(
        "/search/batch",
        response_model=schemas.BatchAnswer,
        openapi_extra={"requestBody": _batch_body()},
    )
    async def search_batch(request: Request) -> Response:
        """Search for several images of the gallery (JSON), or several uploads (multipart)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            uploads, page = await _batch_form(request)
            found = await _search_uploads(services, uploads, page)
        else:
            body = await request.body()
            batch = _checked(lambda: schemas.BatchRequest.model_validate_json(body))
            page = batch.page()
            found = await services.read(
                lambda view: [search_named(view, query, page) for query in batch.queries]
            )
        return answer(schemas.BatchAnswer(answers=found))

    return router


def _add_suggestions(router: APIRouter, services: Services) -> None:
    @router.post("/suggest-box", response_model=SuggestedBox)
    async def suggest_box(image: Image) -> Response:
        """Suggest which part of an image to search with: where its heat map is hot."""
        content, name = await image.read(), upload_name(image.filename)

        def work(view: GalleryView) -> SuggestedBox:
            return SuggestedBox(box=services.suggest(view, content, name))

        return answer(await services.uploads.run(services.views.read, work))


async def _search_uploads(
    services: Services, uploads: list[tuple[bytes, str]], page: Page
) -> list[schemas.SearchAnswer]:
    def work(view: GalleryView) -> list[schemas.SearchAnswer]:
        # All from one view, and embedded by the model that made its codes.
        embeddings = [services.embed(view, content, name) for content, name in uploads]
        return [search_upload(view, vector, page) for vector in embeddings]

    return await services.uploads.run(services.views.read, work)


def _checked(make: Callable[[], schemas.BatchRequest]) -> schemas.BatchRequest:
    try:
        return make()
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
            name: form[name]
            for name in ("top_k", "offset", "where", "rerank", "wrong_at_most")
            if name in form
        }
        values["label"] = [part for part in form.getlist("label") if isinstance(part, str)]
        # The same rules as for JSON; the query stands for the uploads.
        values["queries"] = [schemas.BatchQuery(id="upload")]
        batch = _checked(lambda: schemas.BatchRequest(**values))
        return [(await part.read(), upload_name(part.filename)) for part in files], batch.page()
