"""The page, the documents and what machines ask: /, /static, /docs, /health, /ready, /metrics.

/docs is the OpenAPI document as a page of its own, without scripts and without the network.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from phpq.serve import schemas
from phpq.serve._answers import answer
from phpq.serve.services import Services

STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"
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

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(render(json.dumps(request.app.openapi())))

    @router.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response((TEMPLATES / "docs.css").read_text("utf-8"), media_type="text/css")

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


@cache
def render(document: str) -> str:
    """Turn an OpenAPI document (JSON) into a page."""
    from jinja2 import Environment, FileSystemLoader

    content = json.loads(document)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in content["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(path, method, operation, content))
    page = environment.get_template("docs.html")
    return page.render(info=content["info"], groups=groups)


def _operation(path: str, method: str, operation: Any, document: Any) -> dict[str, Any]:
    fields = [
        _field(given, given["schema"], given["in"], required=given.get("required", False))
        for given in operation.get("parameters", ())
    ]
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        fields += _fields(body["schema"], document, media)
    answers = operation["responses"]
    good = answers.get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    errors = [(code, said["description"]) for code, said in answers.items() if code != "200"]
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation.get("description", operation.get("summary", "")),
        "fields": fields,
        "answer": _fields(good, document, "answer"),
        "errors": sorted(errors),
    }


def _fields(schema: Any, document: Any, place: str) -> list[dict[str, Any]]:
    target = _resolve(schema, document)
    required = target.get("required", ())
    return [
        _field({"name": name, **about}, about, place, required=name in required)
        for name, about in target.get("properties", {}).items()
    ]


def _field(given: Any, schema: Any, place: str, *, required: bool) -> dict[str, Any]:
    """Return one row of a table: a parameter, or a value of a body or an answer."""
    return {
        "name": given["name"],
        "place": place,
        "kind": _kind(schema),
        "required": required,
        "about": given.get("description", ""),
    }


def _resolve(schema: Any, document: Any) -> Any:
    """Follow a reference; of a choice that may be null, take the part that is not."""
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice:
            schema = choice
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _kind(schema: Any) -> str:
    """Say in a few words what a schema allows."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "string" and (schema.get("format") == "binary" or "contentMediaType" in schema):
        return "file"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" {low} to {high}" if low is not None and high is not None else ""
    default = f", {schema['default']!r} by default" if schema.get("default") is not None else ""
    return f"{kind}{bounds}{default}"
