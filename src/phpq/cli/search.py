"""`phpq search`: a gallery or an evaluated run and photographs in, what looks like them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli.output import is_gallery, print_json, results
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from phpq.codes import FloatArray
    from phpq.gallery import Gallery, Hit
    from phpq.search import QueryHits

Shares = list[float]  # of the M codebooks in one score


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
    why: Annotated[
        bool, typer.Option("--why", help="Show what each codebook adds to the score of a hit.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the images of a gallery that look most like a photograph, and name its class."""
    if is_gallery(target):
        from phpq.gallery import Gallery

        if why and rerank:
            raise ConfigError(
                "--why explains scores of codes, and --rerank scores float embeddings, which no "
                "codebook has a share in. Use one of them."
            )
        gallery = Gallery.open(target, device=device)
        queries = gallery.model.embed(list(images))
        answers = gallery.search_many(queries, top_k, where=where, rerank=rerank)
        shares = _shares(gallery, queries, answers) if why else None
        _print_hits(target, images, answers, shares=shares, as_json=as_json)
        return
    if where is not None or rerank or why:
        raise ConfigError(
            f"--where, --rerank and --why are for a gallery; {str(target)!r} is none. Make one "
            "with: phpq index GALLERY SOURCE --model RUN"
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


def _shares(gallery: Gallery, queries: FloatArray, answers: list[list[Hit]]) -> list[list[Shares]]:
    """Return the shares of the codebooks in the score of every hit of every query."""
    from phpq.explain import codebook_shares

    model = gallery.model
    return [
        [
            codebook_shares(
                model.codebooks, query, gallery.get(hit.id).code, query_norm=model.query_norm
            ).tolist()
            for hit in hits
        ]
        for query, hits in zip(queries, answers, strict=True)
    ]


def _print_hits(
    gallery: Path,
    images: Sequence[Path],
    answers: list[list[Hit]],
    *,
    shares: list[list[Shares]] | None,
    as_json: bool,
) -> None:
    reasons: Sequence[list[Shares] | None] = shares or [None] * len(answers)
    if as_json:
        queries = [
            {"query": str(image), "hits": _hit_dicts(hits, why)}
            for image, hits, why in zip(images, answers, reasons, strict=True)
        ]
        print_json({"gallery": str(gallery), "queries": queries})
        return
    console = results()
    for image, hits, why in zip(images, answers, reasons, strict=True):
        if not hits:
            console.print(f"{image}: no image of the gallery qualifies.\n", soft_wrap=True)
            continue
        # Not as the title of the table: that would be wrapped to its width.
        console.print(str(image), style="bold", soft_wrap=True)
        console.print(_hit_table(hits, why))
        console.print(f"{_verdict(hits)}\n", style="bold")


def _hit_dicts(hits: Sequence[Hit], shares: list[Shares] | None) -> list[dict[str, Any]]:
    if shares is None:
        return [hit.to_dict() for hit in hits]
    return [hit.to_dict() | {"shares": own} for hit, own in zip(hits, shares, strict=True)]


def _verdict(hits: Sequence[Hit]) -> str:
    """Name the most common label of the hits; the better placed one of equal counts."""
    labels = [hit.label for hit in hits if hit.label is not None]
    if not labels:
        return "none of the hits has a label"
    winner = max(dict.fromkeys(labels), key=labels.count)
    return f"{winner}, with {labels.count(winner) / len(hits):.0%} of the hits"


def _hit_table(hits: Sequence[Hit], shares: list[Shares] | None) -> Table:
    """Lay out the hits; metadata columns are shown where a hit has a value."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(n for hit in hits for n, v in hit.metadata.items() if v is not None))
    table = Table()
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    if shares is not None:
        table.add_column("of the codebooks", justify="right")
    for name in ("label", "id", *names):
        table.add_column(Text(name), overflow="fold")
    for place, hit in enumerate(hits):
        values = [
            "" if hit.metadata.get(name) is None else str(hit.metadata[name]) for name in names
        ]
        why = [" ".join(f"{share:+.2f}" for share in shares[place])] if shares is not None else []
        cells = (str(hit.rank), f"{hit.score:.3f}", *why, hit.label or "", hit.id, *values)
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
