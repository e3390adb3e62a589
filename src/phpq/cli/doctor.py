"""`phpq doctor`: what is installed here and what is missing for what; what an error code means."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from phpq.cli._console import AsJson, home, print_result, results


def doctor(
    code: Annotated[
        str | None,
        typer.Argument(
            help="The code of an error, as in bad-image. (default: this machine)",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, devices, memory, caches and what is not installed; or explain an error."""
    if code is not None:
        _explain(code, as_json=as_json)
        return
    from phpq.machine import describe_machine

    content = describe_machine(home=home())
    print_result(content, _rows(content), as_json=as_json)


def _explain(code: str, *, as_json: bool) -> None:
    from phpq.cli._console import print_json
    from phpq.errors import explain_code

    page = explain_code(code)
    if as_json:
        print_json({"code": code, "page": page})
        return
    from rich.markdown import Markdown

    results().print(Markdown(page))


def _rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    packages, memory = content["packages"].items(), content["memory_bytes"]
    rows = [
        ("phpq", content["phpq"]),
        ("python", f"{content['python']} on {content['platform']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages if version)),
        *((device["name"], device["model"]) for device in content["devices"]),
        ("cores", f"{content['cores']} ({content['torch_threads'] or 'no'} torch threads)"),
        ("memory", "unknown" if memory is None else f"{memory / 1e9:.1f} GB"),
        ("downloads", content["data_home"]),
    ]
    for kept in content["caches"]:
        sizes = f"{kept['bytes'] / 1e6:,.0f} MB, {kept['free_bytes'] / 1e9:,.0f} GB free"
        rows.append(("kept", f"{kept['folder']}: {sizes}"))
    for entry in content["missing"]:
        rows.append(("missing", f"{entry['package']}, for {entry['for']}: {entry['install']}"))
    return rows if content["missing"] else [*rows, ("missing", "nothing: all extras are here")]
