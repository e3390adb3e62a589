"""`phpq search`: a gallery or an evaluated run and photographs in, what looks like them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli.output import print_json, results
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from phpq.codes import FloatArray
    from phpq.gallery import Gallery
    from phpq.hits import Found

Shares = list[float]  # of the M codebooks in one score
_NO_LABEL = "none of the hits has a label"


def search(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="GALLERY|RUN",
            help="A folder that phpq index wrote, or an evaluated one of phpq train.",
        ),
    ],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top_k: Annotated[int, typer.Option(min=1, help="Hits per image.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="Better hits to skip.")] = 0,
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
    from phpq.gallery import Gallery

    if why and rerank:
        raise ConfigError(
            "--why explains scores of codes, and --rerank scores float embeddings, which no "
            "codebook has a share in. Use one of them."
        )
    gallery = Gallery.open(target, device=device)
    queries = gallery.model.embed(list(images))
    answers = gallery.search_many(queries, top_k, where=where, rerank=rerank, offset=offset)
    shares = _shares(gallery, queries, answers) if why else None
    _print_hits(target, images, answers, shares=shares, as_json=as_json)


def _shares(gallery: Gallery, queries: FloatArray, answers: list[Found]) -> list[list[Shares]]:
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
    answers: list[Found],
    *,
    shares: list[list[Shares]] | None,
    as_json: bool,
) -> None:
    reasons: Sequence[list[Shares] | None] = shares or [None] * len(answers)
    if as_json:
        queries = [
            {"query": str(image)} | _found_dict(found, why)
            for image, found, why in zip(images, answers, reasons, strict=True)
        ]
        print_json({"gallery": str(gallery), "queries": queries})
        return
    console = results()
    for image, found, why in zip(images, answers, reasons, strict=True):
        if not found:
            console.print(f"{image}: no image of the gallery qualifies.\n", soft_wrap=True)
            continue
        # Not as the title of the table: that would be wrapped to its width.
        console.print(str(image), style="bold", soft_wrap=True)
        console.print(_hit_table(found, why))
        verdict = found.verdict
        told = f"{verdict.label}, with {verdict.share:.0%} of the hits" if verdict else _NO_LABEL
        console.print(f"{told}\n", style="bold")


def _found_dict(found: Found, shares: list[Shares] | None) -> dict[str, Any]:
    content = found.to_dict()
    for hit, own in zip(content["hits"], shares or (), strict=shares is not None):
        hit["shares"] = own
    return content


def _hit_table(hits: Found, shares: list[Shares] | None) -> Table:
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
