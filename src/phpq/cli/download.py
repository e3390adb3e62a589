"""`phpq download`: the name of a benchmark in, its folder out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from phpq.cli._console import AsJson, home, print_result, progress_bars


def download(
    name: Annotated[str, typer.Argument(help="cub200 or dogs120.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of downloads (default: $PHPQ_HOME, or else ~/.cache/phpq)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a benchmark from its official address, check it and unpack it.

    A transfer that breaks goes on where it stopped when the command is run again.
    """
    from phpq.data import data_home
    from phpq.data.download import download as fetch

    kept = out if out is not None else data_home(home())
    with progress_bars(in_bytes=True) as progress:
        folder = fetch(name, kept, progress=progress)
    source = name if out is None else f"{name}:{folder}"
    content = {"name": name, "folder": str(folder), "source": source}
    rows = (("folder", str(folder)), ("next", f"phpq train {shlex.quote(source)}"))
    print_result(content, rows, as_json=as_json)
