"""Pages of the site that come from the code, so that they cannot fall behind it (mkdocs hook).

Commands with their options, the HTTP API from its OpenAPI document, troubleshooting by error code,
and the changelog.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent


# Pages of these folders need no line in mkdocs.yml.
_SECTIONS = {"By task": "guides", "Results": "results", "Inside": "decisions"}


def on_config(config: Any) -> Any:
    """Put pages that `nav` does not name at the end of the section of their folder."""
    for entry in config["nav"]:
        (title, pages), *_ = entry.items()
        if folder := _SECTIONS.get(title):
            named = {place for page in pages for place in page.values()}
            found = sorted((ROOT / "docs" / folder).glob("*.md"))
            places = [f"{folder}/{path.name}" for path in found]
            pages += [place for place in places if place not in named]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of docs/ (mkdocs calls it by this name)."""
    from mkdocs.structure.files import File

    for name, content in generated_pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def generated_pages() -> dict[str, str]:
    """Return the Markdown of each page by its place under docs/."""
    return {
        "reference/cli.md": command_page(),
        "reference/http.md": http_page(),
        "decisions/index.md": decisions_page(),
        "troubleshooting.md": (ROOT / "src" / "phpq" / "errors.md").read_text("utf-8"),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text("utf-8"),
    }


def decisions_page() -> str:
    """List the decisions by their titles."""
    lines = ["# Decisions", "", "Why things are as they are; what was tried and left, too.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Describe every command with its arguments and options, as its own help does."""
    import typer

    from phpq.cli import COMMANDS, app

    group = cast(Any, typer.main.get_command(app))
    parts = ["# Commands\n\n`phpq COMMAND --help` says the same in the terminal.\n"]
    for name in COMMANDS:
        command = group.get_command(None, name)
        parts.append(_command(f"phpq {name}", command, level=2))
        for sub, inner in getattr(command, "commands", {}).items():
            parts.append(_command(f"phpq {name} {sub}", inner, level=3))
    return "\n".join(parts)


def _command(title: str, command: Any, *, level: int) -> str:
    from typer.core import TyperArgument

    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n", str(command.help))]
    lines = [f"{'#' * level} {title}", "", "\n\n".join(paragraphs), ""]
    rows = []
    for parameter in command.params:
        argument = isinstance(parameter, TyperArgument)
        if "--help" in parameter.opts or parameter.hidden:
            continue
        names = [parameter.metavar or parameter.name.upper()] if argument else parameter.opts
        off = [] if argument else parameter.secondary_opts
        shown = ", ".join(f"`{text}`" for text in (*names, *off))
        default = parameter.default if parameter.show_default else None
        told = default not in (None, False, "", (), []) and not callable(default)
        extra = f" (default: `{default}`)" if told else ""
        rows.append(f"| {shown} | {_cell(parameter.help)}{extra} |")
    if rows:
        lines += ["| argument or option | what |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def http_page() -> str:
    """Describe every route of the server, as its own /docs does."""
    from fastapi import FastAPI

    from phpq.serve.app import API
    from phpq.serve.routes_gallery import explain_routes, gallery_routes, write_routes
    from phpq.serve.routes_search import search_routes
    from phpq.serve.routes_site import _operation, site_routes
    from phpq.serve.settings import ServerSettings

    # Routes are only described here: no gallery is asked, and of services just the settings.
    app, services = FastAPI(), cast(Any, SimpleNamespace(settings=ServerSettings()))
    for routes in (search_routes, gallery_routes, explain_routes, write_routes):
        app.include_router(routes(services), prefix=API)
    app.include_router(site_routes(services))
    document = app.openapi()
    lines = [
        "# HTTP API",
        "",
        "What `phpq serve` answers; [the guide](../guides/serve.md) has the rest. Errors are "
        '`{"error": {"kind", "message", "request_id"}}`; [what they mean](../troubleshooting.md).',
        "",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            facts = _operation(path, method, operation, document)
            lines += [f"## {facts['method']} {path}", "", " ".join(facts["summary"].split()), ""]
            lines += _fields("send", facts["fields"]) + _fields("get", facts["answer"])
            if refused := ", ".join(f"{code} ({_cell(why)})" for code, why in facts["errors"]):
                lines += [f"Refused by: {refused}", ""]
    return "\n".join(lines)


def _fields(heading: str, fields: list[dict[str, Any]]) -> list[str]:
    if not fields:
        return []
    rows = [
        f"| `{field['name']}`{' (needed)' if heading == 'send' and field['required'] else ''} | "
        f"{_cell(field['kind'])} | {_cell(field['about'])} |"
        for field in fields
    ]
    return [f"| {heading} | kind | what |", "|---|---|---|", *rows, ""]


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")
