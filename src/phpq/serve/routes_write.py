"""Add, replace and delete: off unless the server is writable, and only with its token."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Depends, Form, Header, Query
from starlette.responses import Response

from phpq.errors import ConfigError
from phpq.gallery import AddReport
from phpq.serve import schemas
from phpq.serve.answers import answer
from phpq.serve.files import parse_metadata
from phpq.serve.guard import check_token
from phpq.serve.refusals import too_large
from phpq.serve.schemas import Image
from phpq.serve.services import Services
from phpq.serve.settings import MAX_ID


def write_routes(services: Services) -> APIRouter:
    """Return the routes that change the gallery."""
    settings = services.settings

    def with_token(
        authorization: Annotated[str, Header(description="Bearer TOKEN")] = "",
    ) -> None:
        check_token(authorization, settings)

    router = APIRouter(
        tags=["write"], responses=schemas.WRITE_ERRORS, dependencies=[Depends(with_token)]
    )

    @router.post("/items", response_model=schemas.AddAnswer)
    async def add(
        image: Image,
        id: Annotated[str, Form(min_length=1, max_length=MAX_ID, description="Its new name.")],
        label: Annotated[str | None, Form(max_length=200)] = None,
        metadata: Annotated[
            str | None, Form(max_length=20_000, description="A JSON object of plain values.")
        ] = None,
        mode: Annotated[
            Literal["add", "upsert"], Form(description="upsert replaces another image of this id.")
        ] = "add",
    ) -> Response:
        """Add an image; it is found by every search that begins after the answer."""
        values = parse_metadata(metadata)
        content = await image.read()
        if len(content) > settings.max_upload_bytes:
            raise too_large(f"{len(content):,} bytes", settings.max_upload_bytes)

        def work() -> AddReport:
            return services.writer.add(
                content, id=id, label=label or None, metadata=values, replace=mode == "upsert"
            )

        report = await services.writes.run(work)
        version = await _served(services)
        return answer(schemas.AddAnswer(**report.to_dict(), version=version))

    @router.delete("/items", response_model=schemas.DeleteAnswer)
    async def delete(
        id: Annotated[list[str] | None, Query(max_length=1000, description="Ids.")] = None,
        body: Annotated[schemas.DeleteRequest | None, Body()] = None,
    ) -> Response:
        """Delete images by id, named in the address or as JSON, in one commit."""
        ids = [*(id or ()), *(body.ids if body is not None else ())]
        if not ids:
            raise ConfigError("Say what to delete: ids, as in ?id=a.jpg&id=b.jpg.")
        deleted, unknown = await services.writes.run(services.writer.delete, ids)
        version = await _served(services)
        return answer(schemas.DeleteAnswer(deleted=deleted, unknown=unknown, version=version))

    return router


async def _served(services: Services) -> int:
    """Wait until what was written is searched; many writers share one reload."""
    newest = services.views.newest()

    def reload() -> int:
        return services.views.reload(at_least=newest).version

    return await services.uploads.run(reload)
