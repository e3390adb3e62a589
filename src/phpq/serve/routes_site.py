"""The page, the documents and what machines ask: /, /static, /docs, /health, /ready, /metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from phpq.serve import schemas
from phpq.serve.answers import answer
from phpq.serve.services import Services

STATIC = Path(__file__).parent / "static"
_NO_PAGE = (
    "phpq serves a gallery here.\n\nThe page is not part of this installation; the API is.\n"
    "  /docs          what can be asked\n  /api/v1/info   what is served\n"
)


def site_routes(services: Services, *, static: Path = STATIC) -> APIRouter:
    """Return the routes beside the API."""
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        index = static / "index.html"
        if not index.is_file():
            return PlainTextResponse(_NO_PAGE)
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    @router.get("/health", response_model=schemas.Health, tags=["server"])
    async def health() -> Response:
        """Say that the server is alive."""
        return answer(schemas.Health(status="ok"))

    @router.get(
        "/ready",
        response_model=schemas.Health,
        tags=["server"],
        responses={503: {"model": schemas.Health, "description": "Not yet, or not any more."}},
    )
    async def ready() -> Response:
        """Say whether the gallery is loaded, and which of its shards do not answer."""
        if not services.ready:
            return answer(schemas.Health(status="loading"), status=503)
        version = services.views.current.version
        # Not in the pool of searches: that is full where a shard is missed.
        missing = await asyncio.to_thread(services.shards.missing) if services.shards.remote else []
        if missing:
            health = schemas.Health(status="incomplete", version=version, missing_shards=missing)
            return answer(health, status=503)
        return answer(schemas.Health(status="ok", version=version))

    @router.get("/metrics", response_class=PlainTextResponse, tags=["server"])
    async def metrics() -> Response:
        """Return counts and times in the format of Prometheus."""
        text = services.metrics.text(services.jobs())
        return Response(text, headers={"Content-Type": services.metrics.content_type})

    return router


class _Static(StaticFiles):
    """Files of the page; a browser asks each time whether they have changed."""

    def file_response(self, *arguments, **options):  # type: ignore[no-untyped-def]
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def mount_static(app: FastAPI, *, static: Path = STATIC) -> None:
    """Serve the files of the page under /static."""
    app.mount("/static", _Static(directory=static, check_dir=False), name="static")
