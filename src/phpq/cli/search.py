"""`phpq search`: an evaluated run and photographs in, what looks like them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli.output import print_json, results

if TYPE_CHECKING:
    from rich.table import Table

    from phpq.search import QueryHits


def search(
    run: Annotated[Path, typer.Argument(help="A folder that phpq train wrote, evaluated.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top_k: Annotated[int, typer.Option(min=1, help="Hits an image.")] = 10,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the images of the gallery that look most like a photograph, and name its class."""
    from phpq.search import search_run

    found = search_run(run, images, top_k=top_k, device=device)
    if as_json:
        print_json({"run": str(run), "queries": [query.to_dict() for query in found]})
        return
    console = results()
    for query in found:
        console.print(_table(query))
        if query.more_ties:
            console.print(f"{query.more_ties:,} more images score as much as the last one.")
        console.print(f"{query.label}, with {query.share:.0%} of the hits\n", style="bold")


def _table(query: QueryHits) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(query.query, style="bold"), title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("class", overflow="fold")
    table.add_column("image", overflow="fold")
    for hit in query.hits:
        style = "" if hit.label == query.label else "dim"
        cells = (str(hit.rank), f"{hit.score:.3f}", hit.label, hit.path or hit.id)
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table
