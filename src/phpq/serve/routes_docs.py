"""/docs: the OpenAPI document as a page of its own, without scripts and without the network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter, or one value of a body or an answer."""

    name: str
    place: str
    kind: str
    required: bool
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    fields: tuple[Field, ...]
    answer: tuple[Field, ...]
    errors: tuple[tuple[str, str], ...]


def docs_routes(app: FastAPI) -> APIRouter:
    """Return the routes of the document."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        return HTMLResponse(render(json.dumps(app.openapi())))

    @router.get("/docs/style.css")
    async def style() -> Response:
        return Response((TEMPLATES / "docs.css").read_text("utf-8"), media_type="text/css")

    return router


@cache
def render(document: str) -> str:
    """Turn an OpenAPI document (JSON) into a page."""
    from jinja2 import Environment, FileSystemLoader

    content = json.loads(document)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    page = environment.get_template("docs.html")
    groups: dict[str, list[Operation]] = {}
    for path, methods in content["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(path, method, operation, content))
    return page.render(info=content["info"], groups=groups)


def _operation(path: str, method: str, operation: Any, document: Any) -> Operation:
    fields = [
        Field(
            name=given["name"],
            place=given["in"],
            kind=_kind(given["schema"]),
            required=given.get("required", False),
            about=given.get("description", ""),
        )
        for given in operation.get("parameters", ())
    ]
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        fields += _fields(body["schema"], document, media)
    answers = operation["responses"]
    good = answers.get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    errors = [(code, said["description"]) for code, said in answers.items() if code != "200"]
    return Operation(
        method=method.upper(),
        path=path,
        summary=operation.get("description", operation.get("summary", "")),
        fields=tuple(fields),
        answer=tuple(_fields(good, document, "answer")),
        errors=tuple(sorted(errors)),
    )


def _fields(schema: Any, document: Any, place: str) -> list[Field]:
    target = _resolve(schema, document)
    required = target.get("required", ())
    return [
        Field(name, place, _kind(about), name in required, about.get("description", ""))
        for name, about in target.get("properties", {}).items()
    ]


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
