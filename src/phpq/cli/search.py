"""`phpq search`: a gallery or an evaluated run and photographs in, what looks like them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli._console import AsJson, Device, Runtime, Searchable, messages, print_json, results
from phpq.errors import ConfigError
from phpq.hits import WRONG_AT_MOST

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

    from phpq.codes import FloatArray
    from phpq.data.boxes import Box
    from phpq.gallery import Gallery
    from phpq.gallery.view import PageOptions
    from phpq.hits import Found, Sure, Verdict

Shares = list[float]  # of the M codebooks in one score
_FEW = 16  # photographs
_WRONG_AT_MOST = f"{WRONG_AT_MOST:.0%}"
_NO_LABEL = "none of the hits has a label"


def search(
    target: Searchable,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE", help="Image files.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="All images show one thing: search with all at once.")
    ] = False,
    box: Annotated[
        list[str] | None,
        typer.Option(
            metavar="X0,Y0,X1,Y1",
            help="Search with this part of the image, in pixels; give one for each image. 'auto' "
            "takes the part that phpq suggests, 'whole' all of it.",
        ),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="More like this image of the gallery.")
    ] = None,
    less: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Less like this image of the gallery.")
    ] = None,
    top_k: Annotated[int, typer.Option(metavar="K", min=1, help="Hits per image.")] = 10,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Skip the first N hits.")] = 0,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="Only images for which this is true: \"label = 'wren' AND year > 2020\"",
        ),
    ] = None,
    rerank: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="R",
            help="Order the first R hits by their float embeddings; may cost hits further down.",
        ),
    ] = 0,
    wrong_at_most: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="How many of the names given may be wrong; what is less sure is called unknown.",
        ),
    ] = _WRONG_AT_MOST,
    why: Annotated[
        bool, typer.Option("--why", help="Show what each codebook adds to the score of a hit.")
    ] = False,
    device: Device = "auto",
    runtime: Runtime = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the images of a gallery that look most like a photograph, and name its class."""
    from phpq.gallery import Gallery

    if why and rerank:
        raise ConfigError(
            "--why explains scores of codes, and --rerank scores float embeddings, which no "
            "codebook has a share in. Use one of them."
        )
    if why and (together or more or less or not images):
        raise ConfigError(
            "--why explains the score of a single image, and not that of several together or of "
            "examples. Leave out --why, or --together, --more and --less."
        )
    accepted = _share(wrong_at_most)
    photos = list(images or [])
    # A GPU would take longer to start than the processor takes for a few photographs.
    here = "cpu" if device == runtime == "auto" and len(photos) <= _FEW else device
    gallery = Gallery.open(target, device=here, runtime=runtime)
    queries = gallery.embed(_boxed(gallery, photos, box or [])) if photos else None
    options: PageOptions = {
        "where": where,
        "rerank": rerank,
        "offset": offset,
        "wrong_at_most": accepted,
    }
    if queries is None or together or more or less:
        groups = [queries] if queries is None or together else [row[None] for row in queries]
        answers = [
            gallery.search(group, top_k, more=more or (), less=less or (), **options)
            for group in groups
        ]
        joined = " + ".join(map(str, photos)) or "like " + ", ".join(more or ())
        names = [joined] if len(groups) == 1 else [str(photo) for photo in photos]
    else:
        answers = gallery.search_many(queries, top_k, **options)
        names = [str(photo) for photo in photos]
    if wrong_at_most != _WRONG_AT_MOST and all(found.sure is None for found in answers):
        messages().print(
            "--wrong-at-most changes nothing: this gallery has no probabilities. Fit them with "
            "phpq gallery calibrate.",
            style="yellow",
        )
    explained = None if queries is None or not why else _shares(gallery, queries, answers)
    reasons = explained or [None] * len(answers)
    asked = list(zip(names, answers, reasons, strict=True))
    if as_json:
        found = [{"query": name} | _found_dict(hits, shares) for name, hits, shares in asked]
        print_json({"gallery": str(target), "queries": found})
        return
    for name, hits, shares in asked:
        _print_hits(name, hits, shares, filtered=where is not None, skipped=offset)


def _boxed(gallery: Gallery, photos: list[Path], texts: list[str]) -> list[Path | Image.Image]:
    """Return the parts of photos that boxes are on; a photo without one is taken as it is."""
    from phpq.data.boxes import cut_out, read_box
    from phpq.gallery.queries import boxes_for

    if not texts:
        return list(photos)
    boxes_for(tuple(None for _ in texts), len(photos))
    most = gallery.model.card.config.data.max_pixels
    parts: list[Path | Image.Image] = []
    for photo, text in zip(photos, texts, strict=True):
        if text == "whole":
            parts.append(photo)
            continue
        chosen = _suggested(gallery, photo) if text == "auto" else read_box(text)
        parts.append(cut_out(photo, chosen, max_pixels=most))
    return parts


def _suggested(gallery: Gallery, photo: Path) -> Box:
    from phpq.explain import suggest_box

    box = suggest_box(gallery.model, photo)
    shown = ",".join(f"{edge:.0f}" for edge in box)
    messages().print(f"{photo}: searching with the box {shown}", soft_wrap=True)
    return box


def _shares(
    gallery: Gallery, queries: FloatArray, answers: list[Found]
) -> list[list[Shares] | None]:
    """Return the shares of the codebooks in the score of every hit of every query."""
    from phpq.explain import codebook_shares

    books, norm = gallery.codebooks, gallery.manifest.query_norm
    return [
        [
            codebook_shares(books, query, gallery.get(hit.id).code, query_norm=norm).tolist()
            for hit in hits
        ]
        for query, hits in zip(queries, answers, strict=True)
    ]


def _print_hits(
    image: str, found: Found, shares: list[Shares] | None, *, filtered: bool, skipped: int
) -> None:
    console = results()
    if not found:
        why = "no image passes the filter" if filtered else "the gallery is empty"
        if found.total:
            why = f"--offset {skipped} skips all {found.total:,} hits"
        console.print(f"{image}: {why}.\n", soft_wrap=True)
        return
    # Not as the title of the table: that would be wrapped to its width.
    console.print(image, style="bold", soft_wrap=True)
    console.print(_hit_table(found, shares))
    console.print(f"{_told(found, filtered=filtered)}\n", style="bold", soft_wrap=True)


def _told(found: Found, *, filtered: bool) -> str:
    """Say what the query shows, and below it the other kinds that it may be."""
    verdict = found.verdict
    if verdict is None:
        return _NO_LABEL
    if verdict.by == "hits":
        return f"most hits: {verdict.label} ({verdict.share:.0%})"
    if verdict.sure is not None:
        return _surely(verdict, verdict.sure)
    if not verdict.runners_up:
        only = "passes the filter" if filtered else "the gallery knows"
        return f"{verdict.label}, the only kind that {only}"
    others = ", ".join(f"{label} ({_likely(share)})" for label, share in verdict.runners_up)
    known = "pass the filter" if filtered else "the gallery knows"
    best = f"{verdict.label}, {_likely(verdict.share)} likely"
    return f"{best} if it is one of the kinds that {known}\nor {others}"


def _surely(verdict: Verdict, sure: Sure) -> str:
    """Say what is sure enough, and below it the kinds that are nearest."""
    known = verdict.known or 0.0
    kinds = [(verdict.label, verdict.share), *verdict.runners_up]
    listed = [f"{label} ({_likely(known * share)})" for label, share in kinds]
    if sure.level == 0:
        others = f"\nor {', '.join(listed[1:])}" if listed[1:] else ""
        return f"likely {listed[0]}{others}"
    nearest = f"nearest: {', '.join(listed)}"
    if sure.label is None:
        accepted = f"at most {100 * sure.wrong_at_most:g}% of names may be wrong"
        # More likely than not, and still too little for what the caller accepts.
        perhaps = f", perhaps {verdict.label}" if sure.probability >= 0.5 else ""
        more = "; --wrong-at-most allows more" if sure.wrong_at_most < 1 else ""
        return f"unknown{perhaps}: no name is sure enough ({accepted}{more})\n{nearest}"
    return f"likely {sure.label} ({_likely(sure.probability)}); the kind is not sure\n{nearest}"


def _share(text: str) -> float:
    """Read a percentage, as in 5% or 2.5."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(
            f"--wrong-at-most {text!r} is not allowed: give a percentage from 0 to 100, as in 5%."
        )
    return share


def _likely(share: float) -> str:
    """Show a share of kinds without a 0% or 100% that it is not."""
    return "under 1%" if share < 0.01 else "over 99%" if 0.99 < share < 1 else f"{share:.0%}"


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
    likely = any(hit.probability is not None for hit in hits)
    if likely:
        table.add_column("same kind", justify="right")
    if shares is not None:
        table.add_column("per codebook", justify="right")
    for name in ("label", "id", *names):
        table.add_column(Text(name), overflow="fold")
    for place, hit in enumerate(hits):
        values = [
            "" if hit.metadata.get(name) is None else str(hit.metadata[name]) for name in names
        ]
        why = [" ".join(f"{share:+.2f}" for share in shares[place])] if shares is not None else []
        chance = [""] if hit.probability is None else [_likely(hit.probability)]
        cells = (str(hit.rank), f"{hit.score:.3f}", *(chance if likely else []), *why)
        cells += (hit.label or "", hit.id, *values)
        table.add_row(*(Text(cell) for cell in cells))
    return table
