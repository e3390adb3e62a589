"""The app: an open gallery and settings in, a FastAPI application out. No torch at import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from phpq._version import __version__
from phpq.errors import PhpqError
from phpq.serve._guard import Guard, refuse
from phpq.serve._refusals import Refused, describe_invalid, error_body
from phpq.serve.routes_audit import audit_routes
from phpq.serve.routes_gallery import explain_routes, gallery_routes, write_routes
from phpq.serve.routes_search import search_routes
from phpq.serve.routes_site import mount_static, site_routes
from phpq.serve.services import Services
from phpq.serve.settings import ServerSettings

if TYPE_CHECKING:
    from phpq.gallery import Gallery
    from phpq.gallery.shards import Shards

API = "/api/v1"


def create_app(
    gallery: Gallery, settings: ServerSettings | None = None, *, shards: Shards | None = None
) -> FastAPI:
    """Make the application that serves a gallery.

    Args:
        gallery: Open. The server reads it by views of its own and follows its changes.
        settings: By default: loopback, read-only.
        shards: Hold the codes and search them; by default one, in this process. See
            `phpq.serve.ray_shards.ray_shards`.
    """
    settings = settings or ServerSettings()
    services = Services(gallery, settings, shards)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        services.start()
        try:
            yield
        finally:
            services.close()

    app = FastAPI(
        title="phpq",
        description="Fine-grained image search in a few bytes per image.",
        version=__version__,
        docs_url=None,  # the usual page loads scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.services = services
    for routes in (search_routes, gallery_routes, explain_routes, audit_routes, write_routes):
        app.include_router(routes(services), prefix=API)
    app.include_router(site_routes(services))
    mount_static(app)
    _handle_errors(app, gallery)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(  # the outermost
        Guard, settings=settings, metrics=services.metrics, full=lambda: services.uploads.full
    )
    return app


def _handle_errors(app: FastAPI, gallery: Gallery) -> None:
    @app.exception_handler(PhpqError)
    async def known(request: Request, error: PhpqError) -> JSONResponse:
        # The library's own words, but where the gallery lies on this machine is nobody's business.
        text = str(error).replace(str(gallery.path), gallery.name)
        return refuse(error, _number(request), text=text)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        text = describe_invalid(list(error.errors()))
        return JSONResponse(error_body("ConfigError", text, _number(request)), 422)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, Refused):  # while the body was read
            return refuse(error.__cause__, _number(request))
        kind = "UnknownNameError" if error.status_code == 404 else "ConfigError"
        text = f"{request.method} {request.url.path}: {error.detail}. See /docs."
        content = error_body(kind, text, _number(request))
        return JSONResponse(content, error.status_code, error.headers)


def _number(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))
