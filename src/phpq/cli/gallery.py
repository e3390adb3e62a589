"""`phpq gallery`: look at a gallery and look after it. None of these needs torch but a repair."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from phpq.cli._console import AsJson, messages, print_result
from phpq.errors import ConfigError

gallery = typer.Typer(
    help="Look at a gallery, delete from it, compact, verify or export it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Argument(metavar="GALLERY", help="A folder that phpq index wrote.")]


@gallery.command()
def info(folder: Folder, as_json: AsJson = False) -> None:
    """Show how many images, labels and columns there are, and what they take."""
    from phpq.gallery.export import describe_store
    from phpq.gallery.store import GalleryStore

    content = describe_store(GalleryStore.open(folder))
    columns = [f"{name} ({kind})" for name, kind in content["metadata"].items()]
    codes = f"{content['bits']} bits, {content['distinct_codes']:,} distinct"
    size, files = readable_bytes(content["disk_bytes"]), plural(content["files"], "data file")
    rows = [
        ("gallery", content["gallery"]),
        ("images", f"{content['images']:,} ({content['unlabelled']:,} without a label)"),
        ("labels", f"{content['labels']:,}"),
        ("codes", f"{codes}, {readable_bytes(content['code_bytes'])}"),
        ("filters", ", ".join(["id (string)", "uri (string)", "label (string)", *columns])),
        ("embeddings", "kept, for --rerank" if content["embeddings"] else "not kept"),
        ("disk", f"{size} in {files}"),
        ("created", f"{content['created']}, version {content['version']:,} now"),
        ("model", content["model_fingerprint"][:16]),
    ]
    print_result(content, rows, as_json=as_json)


@gallery.command()
def delete(
    folder: Folder,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="EXPR", help="All images that fulfil it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete images by id, or by an expression such as "label = 'sparrow'". Files stay."""
    from phpq.gallery.store import GalleryStore

    store = GalleryStore.open(folder)
    unknown = sorted(set(ids or ()) - set(store.find(ids or ())))
    gone = store.delete(ids or None, where=where)
    for name in unknown[:10]:
        messages().print(f"not in the gallery: {name!r}", style="yellow", markup=False)
    content = {"deleted": gone, "images": len(store), "unknown": unknown}
    rows = (("deleted", plural(gone, "image")), ("left", plural(len(store), "image")))
    print_result(content, rows, as_json=as_json)


@gallery.command()
def compact(folder: Folder, as_json: AsJson = False) -> None:
    """Merge small files, and free what deleted and replaced images took."""
    from phpq.gallery.export import folder_bytes
    from phpq.gallery.store import GalleryStore

    before = folder_bytes(folder)
    store = GalleryStore.open(folder)
    store.compact()
    after = folder_bytes(folder)
    content = {"images": len(store), "bytes_before": before, "bytes_after": after}
    text = f"{readable_bytes(before)} before, {readable_bytes(after)} now"
    print_result(content, [("disk", text)], as_json=as_json)


@gallery.command()
def verify(
    folder: Folder,
    repair: Annotated[bool, typer.Option("--repair", help="Fix what can be fixed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read everything and compare it with what was written; exit code 1 if something is wrong.

    A repair sets broken files aside, goes back to the last good version, encodes again what lost
    its code, and names what had to be dropped.
    """
    from phpq.gallery.repair import verify_gallery

    report = verify_gallery(folder, repair=repair)
    rows = [("problem", text) for text in report.problems]
    rows += [("repaired", text) for text in report.repairs]
    rows += [("lost", name) for name in report.lost[:20]]
    if len(report.lost) > 20:
        rows.append(("", f"... and {len(report.lost) - 20:,} more"))
    if report.sound:
        rows.append(("sound", plural(report.images, "image")))
    else:
        rows.append(("next", f"phpq gallery verify --repair {shlex.quote(str(folder))}"))
    print_result(report.to_dict(), rows, as_json=as_json)
    if not report.sound:
        raise typer.Exit(1)


@gallery.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="The file to write.")],
    as_json: AsJson = False,
) -> None:
    """Write ids, uris, labels, metadata, hashes and codes to a Parquet file."""
    from phpq.gallery.export import export_parquet
    from phpq.gallery.store import GalleryStore

    if out.suffix.lower() != ".parquet":
        raise ConfigError(f"{str(out)!r} must end in .parquet.")
    written = export_parquet(GalleryStore.open(folder), out)
    rows = (("file", str(out)), ("images", f"{written:,}"))
    print_result({"images": written, "file": str(out)}, rows, as_json=as_json)


def plural(count: int, noun: str) -> str:
    """Write a number of things: 1 image, 2 images."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def readable_bytes(count: float) -> str:
    """Write a size as people do: 999 bytes, 1.2 kB, 3.4 MB."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
