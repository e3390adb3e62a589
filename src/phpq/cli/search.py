"""`phpq search`: a gallery or an evaluated run and photographs in, what looks like them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli.output import is_gallery, print_json, results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from phpq.gallery import Hit
    from phpq.search import QueryHits


def search(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="GALLERY|RUN",
            help="A folder that phpq index wrote, or an evaluated one of phpq train.",
        ),
    ],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top_k: Annotated[int, typer.Option(min=1, help="Hits an image.")] = 10,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="Only images of the gallery that fulfil it: \"label = 'wren' AND year > 2020\"",
        ),
    ] = None,
    rerank: Annotated[
        int,
        typer.Option(min=0, metavar="R", help="Order the first R hits by their float embeddings."),
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the images of a gallery that look most like a photograph, and name its class."""
    if is_gallery(target):
        from phpq.gallery import Gallery

        gallery = Gallery.open(target, device=device)
        answers = gallery.search_many(list(images), top_k, where=where, rerank=rerank)
        _print_hits(target, images, answers, as_json=as_json)
        return
    if where is not None or rerank:
        from phpq.errors import ConfigError

        raise ConfigError(
            f"--where and --rerank search a gallery; {str(target)!r} is none. Make one with: "
            "phpq index GALLERY SOURCE --model RUN"
        )
    _search_run(target, images, top_k, device=device, as_json=as_json)


def _search_run(
    run: Path, images: Sequence[Path], top_k: int, *, device: str, as_json: bool
) -> None:
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


def _print_hits(
    gallery: Path, images: Sequence[Path], answers: list[list[Hit]], *, as_json: bool
) -> None:
    if as_json:
        queries = [
            {"query": str(image), "hits": [hit.to_dict() for hit in hits]}
            for image, hits in zip(images, answers, strict=True)
        ]
        print_json({"gallery": str(gallery), "queries": queries})
        return
    console = results()
    for image, hits in zip(images, answers, strict=True):
        if not hits:
            console.print(f"{image}: no image of the gallery qualifies.\n", soft_wrap=True)
            continue
        # Not as the title of the table: that would be wrapped to its width.
        console.print(str(image), style="bold", soft_wrap=True)
        console.print(_hit_table(hits))
        console.print(f"{_verdict(hits)}\n", style="bold")


def _verdict(hits: Sequence[Hit]) -> str:
    """Name the most common label of the hits; the better placed one of equal counts."""
    labels = [hit.label for hit in hits if hit.label is not None]
    if not labels:
        return "none of the hits has a label"
    winner = max(dict.fromkeys(labels), key=labels.count)
    return f"{winner}, with {labels.count(winner) / len(hits):.0%} of the hits"


def _hit_table(hits: Sequence[Hit]) -> Table:
    """Lay out the hits; metadata columns are shown where a hit has a value."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(n for hit in hits for n, v in hit.metadata.items() if v is not None))
    table = Table()
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    for name in ("label", "id", *names):
        table.add_column(Text(name), overflow="fold")
    for hit in hits:
        values = [
            "" if hit.metadata.get(name) is None else str(hit.metadata[name]) for name in names
        ]
        cells = (str(hit.rank), f"{hit.score:.3f}", hit.label or "", hit.id, *values)
        table.add_row(*(Text(cell) for cell in cells))
    return table


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
