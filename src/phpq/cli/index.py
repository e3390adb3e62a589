"""`phpq index`: a gallery folder and images in, the gallery made or brought up to date."""

from __future__ import annotations

import shlex
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from phpq.cli._console import (
    AsJson,
    Device,
    Runtime,
    home,
    is_gallery,
    messages,
    plural,
    print_result,
    progress_bars,
    readable_bytes,
    warn_skipped,
)
from phpq.errors import ConfigError
from phpq.files import is_taken

if TYPE_CHECKING:
    from phpq.gallery import AddReport, Gallery
    from phpq.gallery.ingest import Engine


def index(
    gallery: Annotated[
        Path,
        typer.Argument(metavar="GALLERY", help="The gallery folder; made if it is not there."),
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder of images (sub-folders are labels), a CSV, TSV, Parquet or Lance table "
            "with a column `path` or `image`, a .txt list, one image, a URI of any of these, "
            "cub200, dogs120 or plumage.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The run whose model to use; needed for a new gallery."),
    ] = None,
    own_codebooks: Annotated[
        bool,
        typer.Option(
            "--own-codebooks",
            help="Fit codebooks to the images and labels of a new gallery: for kinds of things "
            "that the model never saw.",
        ),
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Code length, with --own-codebooks. (default: 64)"),
    ] = None,
    keep_embeddings: Annotated[
        bool | None,
        typer.Option(
            "--keep-embeddings/--no-embeddings",
            help="Keep float16 embeddings, for --rerank and refits. (default: only with "
            "--own-codebooks)",
            show_default=False,
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete images whose files are gone from the folder.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let an id that names one file name another.")
    ] = False,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Put this before every id, as in 2024/")
    ] = "",
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Images encoded at once.")
    ] = 64,
    device: Device = "auto",
    runtime: Runtime = "auto",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Encode on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; without an address "
            "one is started on this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put images into a gallery: run it again, and only what is new or has changed is encoded.

    If it is interrupted, what was done is kept: run it again to go on. Images that cannot be read
    are named and left out.
    """
    from phpq.gallery.sources import first_item, open_named

    start = time.monotonic()
    images = open_named(source, home())
    first_item(images)  # a source that is not there leaves no empty gallery behind
    # The GPUs are for the actors.
    here = device if ray is None else "cpu"
    new = NewGallery(own_codebooks, bits, keep_embeddings)
    opened = _open(gallery, source, model, new, device=here, runtime=runtime)
    cluster: AbstractContextManager[Engine | None] = nullcontext()
    if ray is not None:
        from phpq.cluster.encoding import ray_engine

        cluster = ray_engine(gallery, ray, device=device)
    write, empty = opened.upsert if replace else opened.add, not len(opened)
    try:
        with cluster as engine, progress_bars() as progress:
            report = write(
                images, prefix=prefix, batch_size=batch_size, progress=progress, engine=engine
            )
    except KeyboardInterrupt:
        kept = f"{len(opened):,} images are in the gallery. Run the command again to go on."
        raise KeyboardInterrupt(kept) from None
    deleted = opened.prune(source) if prune else 0
    opened.copy()
    warn_skipped([image.reason for image in report.skipped])
    content = report.to_dict() | {"deleted": deleted, "images": len(opened)}
    if empty and report.replaced:
        messages().print(
            f"{plural(report.replaced, 'image')} had the id of an earlier one and took its place: "
            "give every image an id of its own.",
            style="yellow",
        )
    rows = _rows(opened, report, deleted, time.monotonic() - start)
    print_result({"gallery": str(gallery)} | content, rows, as_json=as_json)


class NewGallery(NamedTuple):
    """What was asked of a gallery; one that is there already must be like that."""

    own_codebooks: bool
    bits: int | None
    keep_embeddings: bool | None


def _open(
    folder: Path,
    source: str,
    model: str | None,
    new: NewGallery,
    *,
    device: str,
    runtime: str,
) -> Gallery:
    from phpq.gallery import Gallery

    if is_gallery(folder):
        opened = Gallery.open(folder, device=device, runtime=runtime)
        _check_like(opened, new)
        if model is not None and not opened.made_by(model):
            raise ConfigError(
                f"The gallery {str(folder)!r} holds codes of another model than {model!r}. Leave "
                "out --model to go on with its own, or index into another folder."
            )
        return opened
    if is_taken(folder):
        raise ConfigError(
            f"{str(folder)!r} is not a gallery, and not empty. Name a gallery, or a folder that "
            "does not exist yet, as in birds.gallery."
        )
    if model is None:
        raise ConfigError(
            f"There is no gallery {str(folder)!r} yet. Say which model makes it: "
            f"phpq index {shlex.quote(str(folder))} {shlex.quote(source)} --model RUN"
        )
    if new.bits is not None and not new.own_codebooks:
        raise ConfigError(
            f"--bits {new.bits} is for --own-codebooks; without, codes are as long as the model "
            "makes them."
        )
    from phpq.model import load

    return Gallery.create(
        folder,
        load(model, device=device, runtime=runtime),
        codebooks="own" if new.own_codebooks else "model",
        bits=new.bits or 64,
        keep_embeddings=new.keep_embeddings,
    )


def _check_like(gallery: Gallery, new: NewGallery) -> None:
    """Raise a `ConfigError` if a gallery is not what was asked for."""
    manifest = gallery.manifest
    asked = (
        ("--keep-embeddings", new.keep_embeddings is True, manifest.keep_embeddings),
        ("--no-embeddings", new.keep_embeddings is False, not manifest.keep_embeddings),
        ("--own-codebooks", new.own_codebooks, manifest.owns_codebooks),
        (f"--bits {new.bits}", new.bits is not None, new.bits == manifest.bits),
    )
    for option, given, fulfilled in asked:
        if given and not fulfilled:
            hint = "Index into another folder."
            if option.startswith("--bits") and manifest.owns_codebooks:
                hint = f"Change it with: phpq gallery refit {gallery.path} {option}"
            raise ConfigError(
                f"{option} is for a new gallery; {str(gallery.path)!r} was made otherwise. {hint}"
            )


def _rows(
    gallery: Gallery, report: AddReport, deleted: int, seconds: float
) -> list[tuple[str, str]]:
    changes = (
        (report.added, "added"),
        (report.replaced, "replaced"),
        (report.unchanged, "unchanged"),
        (len(report.skipped), "left out"),
        (deleted, "deleted"),
    )
    shown = [f"{count:,} {name}" for count, name in changes if count]
    info = gallery.info()
    name = shlex.quote(str(gallery.path))
    size = f"{info['bits']} bits each: {readable_bytes(info['code_bytes'])} of codes"
    fitted = [("codebooks", "fitted anew to what the gallery holds")] if report.refitted else []
    if due := info.get("fit", {}).get("due"):
        fitted = [("refit", f"due, {due}: phpq gallery refit {name}")]
    if report.added and _knows_kinds(gallery):
        fitted.append(("note", "The model learned kinds of these names. If it learned from these"))
        fitted.append(("", "very images, answers are too often unknown: fit them to other photos"))
        fitted.append(("", f"with phpq gallery calibrate {name} PHOTOS/"))
    images, labels = plural(info["images"], "image"), plural(info["labels"], "label")
    search = [("next", f"phpq search {name} PHOTO"), ("", f"phpq serve {name} --open")]
    return [
        ("indexed", f"{', '.join(shown) or 'nothing'}, in {seconds:.1f} s"),
        ("gallery", f"{images}, {labels}, {size}"),
        *fitted,
        *(search if info["images"] else []),
    ]


def _knows_kinds(gallery: Gallery) -> bool:
    """Tell whether most images of a gallery with its own codebooks are of kinds of its model."""
    from phpq.gallery.records import sql_text

    if not gallery.manifest.owns_codebooks or not gallery.model.class_names:
        return False
    names = ", ".join(map(sql_text, gallery.model.class_names))
    return gallery.count(f"label IN ({names})") > len(gallery) / 2
