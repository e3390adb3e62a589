"""`phpq gallery`: look at a gallery and look after it.

None of these needs torch but a repair, and what shows images to a model again.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli._console import (
    AsJson,
    Device,
    doubt_rows,
    few_rows,
    home,
    messages,
    plural,
    print_result,
    progress_bars,
    readable_bytes,
)
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from phpq.gallery.store import GalleryStore
    from phpq.gallery.upgrade import UpgradeReport
    from phpq.model import Model

gallery = typer.Typer(
    help="Look at a gallery, change its labels or its model, refit, compact, verify or export it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Argument(metavar="GALLERY", help="A folder that phpq index wrote.")]


@gallery.command()
def info(folder: Folder, as_json: AsJson = False) -> None:
    """Show how many images, labels and columns there are, and what they take."""
    from phpq.gallery.export import describe_store, folder_bytes
    from phpq.gallery.store import GalleryStore

    content = describe_store(GalleryStore.open(folder))
    columns = [f"{name} ({kind})" for name, kind in content["metadata"].items()]
    codes = f"{content['bits']} bits, {content['distinct_codes']:,} distinct"
    size, files = readable_bytes(content["disk_bytes"]), plural(content["files"], "data file")
    models = sum(folder_bytes(folder / name) for name in ("model", "models"))
    rows = [
        ("gallery", content["gallery"]),
        ("images", f"{content['images']:,} ({content['unlabelled']:,} without a label)"),
        ("labels", f"{content['labels']:,}"),
        ("codes", f"{codes}, {readable_bytes(content['code_bytes'])}"),
        ("filters", ", ".join(["id (string)", "uri (string)", "label (string)", *columns])),
        ("embeddings", "kept, for --rerank" if content["embeddings"] else "not kept"),
        ("disk", f"{size}, {readable_bytes(models)} of it the model; {files}"),
        ("created", f"{content['created']}, version {content['version']:,} now"),
        ("model", content["model_fingerprint"][:16]),
    ]
    if content["before"]:
        command = f"phpq gallery upgrade {shlex.quote(str(folder))}"
        rows.append(("kept", f"version {content['before']:,}, for {command} --rollback"))
    own = _own_rows(content, folder) if content["codebooks"] == "own" else []
    rows[4:4] = [*own, *doubt_rows(content["probabilities"])]
    print_result(content, rows, as_json=as_json)


def _own_rows(content: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Tell what codebooks of a gallery's own were fitted to, and whether they still fit."""
    fit = content["fit"]
    if not fit["fitted_rows"]:
        return [("codebooks", "its own, fitted when the first images are added")]
    known = f"{plural(fit['classes'], 'kind')}, trust {content['trust']:g}"
    told = f"its own, fitted to {plural(fit['fitted_rows'], 'image')}, {known}"
    rows = [("codebooks", told)]
    if content["bytes_per_image"] is not None:
        each = f"{content['bytes_per_image']:,.1f} bytes per image"
        shared = f"{readable_bytes(content['codebook_bytes'])} of codebooks"
        rows.append(("cost", f"{each}, counting {shared} that all images share"))
    now = fit["distortion"]
    measured = "not known without embeddings" if now is None else f"{now:.4f} now"
    rows.append(("distortion", f"{fit['distortion_at_fit']:.4f} at the fit, {measured}"))
    command = f"phpq gallery refit {shlex.quote(str(folder))}"
    due = f"due, {fit['due']}: {command}" if fit["due"] else "not due"
    return [*rows, ("refit", due)]


@gallery.command()
def calibrate(
    folder: Folder,
    photos: Annotated[
        str, typer.Argument(metavar="PHOTOS", help="Labelled photos that are not in the gallery.")
    ],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit the probabilities of answers to labelled photos that the gallery does not hold.

    Without it, probabilities come from the training of the model, or, with --own-codebooks, from
    the images of the gallery, which mislead if the model learned from them. A refit of codebooks
    goes back to these.
    """
    from phpq.gallery.calibration import calibrate as fit_chances
    from phpq.gallery.sources import open_named
    from phpq.gallery.store import GalleryStore

    store = GalleryStore.open(folder)
    told = fit_chances(store, lambda: _load(store, device), open_named(photos, home()))
    print_result(told, doubt_rows(told), as_json=as_json)


@gallery.command()
def parents(
    folder: Folder,
    table: Annotated[
        Path | None, typer.Argument(metavar="FILE.csv", help="Lines of label,parent.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Or a column that has the parent; repeat for the parent's parent."
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take all parents away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what labels belong to, so that a photo of an unsure species still gets its family.

    A parent may have a parent. A gallery with its own codebooks fits its probabilities anew at
    once; for any other, run phpq gallery calibrate next.
    """
    from phpq.gallery.calibration import read_parents, set_parents
    from phpq.gallery.store import GalleryStore

    if sum((table is not None, bool(column), clear)) != 1:
        raise ConfigError(
            "Give one of these: a FILE.csv with lines of label,parent; --column NAME; --clear."
        )
    said = column or (read_parents(table) if table else {})
    store = GalleryStore.open(folder)
    told = set_parents(store, said)
    rows = [("children", plural(told["children"], "name")), *doubt_rows(told)]
    if told["children"] and not store.manifest.owns_codebooks:
        command = f"phpq gallery calibrate {shlex.quote(str(folder))} PHOTOS/"
        rows.append(("next", f"{command}   until then no parent is named"))
    print_result(told, rows, as_json=as_json)


@gallery.command()
def refit(
    folder: Folder,
    trust: Annotated[
        float | None, typer.Option(min=0, max=1, help="How far labels are trusted, 0 to 1.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="New code length, a multiple of 8.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit the codebooks of a gallery to what it holds now, and encode all images anew.

    It works from kept embeddings, or else from the images. The old version is served until the new
    one is whole. A refit that was interrupted goes on where it stopped when it is run again.
    """
    from phpq.gallery.calibration import describe
    from phpq.gallery.refit import refit as fit_again
    from phpq.gallery.store import GalleryStore

    store = GalleryStore.open(folder)
    load = partial(_load, store, device)
    photos = store.manifest.owns_codebooks and describe(store).get("by") == "photos"
    with progress_bars() as progress:
        report = fit_again(store, load, trust=trust, bits=bits, progress=progress)
    rows = [
        ("refitted", f"{plural(report.images, 'image')}, {report.bits} bits each"),
        ("distortion", f"{report.distortion:.4f}, labels trusted {report.trust:g}"),
    ]
    if report.from_codes:
        gone = f"{plural(report.from_codes, 'image')}, whose files are gone or have changed"
        rows.append(("from codes", gone))
    if photos:
        again = f"phpq gallery calibrate {shlex.quote(str(folder))} PHOTOS/"
        rows.append(("next", f"{again}   probabilities rest on its images again"))
    print_result(report.to_dict(), rows, as_json=as_json)


def _load(store: GalleryStore, device: str) -> Model:
    from phpq.gallery.models import load_model

    return load_model(store.folder, store.manifest, device)


@gallery.command()
def upgrade(
    folder: Folder,
    model: Annotated[
        str | None, typer.Option(metavar="RUN", help="The new model: a run, or a model folder.")
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(metavar="N", help="New code length, for a gallery's own codebooks."),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out images whose files are gone.")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Go back to the version before; again: forward.")
    ] = False,
    drop_old: Annotated[
        bool, typer.Option("--drop-old", help="Drop the version that --rollback would go to.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Give a gallery another model or another code length, under the same ids and metadata.

    Another model is shown the images again; another length needs none where embeddings are kept.
    The old version is served until the new one is whole, and stays until --drop-old. An upgrade
    that was interrupted goes on where it stopped when it is run again.
    """
    from phpq.gallery import upgrade as work
    from phpq.gallery.models import as_model
    from phpq.gallery.store import GalleryStore

    changes = model is not None or bits is not None
    if changes + rollback + drop_old != 1:
        raise ConfigError(
            "Say what to do, one of: --model RUN (with --bits, or --bits alone), --rollback, "
            "--drop-old."
        )
    store = GalleryStore.open(folder)
    if drop_old:
        had, freed = store.manifest.before, work.drop_old(store)
        dropped = f"version {had:,}, {readable_bytes(freed)} freed" if had else "nothing was kept"
        content = {"dropped": had or None, "bytes_freed": freed}
        print_result(content, [("dropped", dropped)], as_json=as_json)
        return
    if rollback:
        report = work.rollback(store)
    else:
        new = None if model is None else as_model(model, device)
        with progress_bars() as progress:
            report = work.upgrade(
                store,
                partial(_load, store, device),
                new,
                bits,
                drop_missing=drop_missing,
                progress=progress,
            )
    done = "rolled back" if rollback else "upgraded" if report.changed else "unchanged"
    rows = [(done, f"{plural(report.images, 'image')}, {report.bits} bits each")]
    rows += _upgrade_rows(report, folder)
    print_result(report.to_dict(), rows, as_json=as_json)


def _upgrade_rows(report: UpgradeReport, folder: Path) -> list[tuple[str, str]]:
    """Tell what a gallery is after an upgrade, or after a rollback."""
    rows = [("model", report.model[:16]), ("version", f"{report.version:,}")]
    rows += few_rows("left out", report.dropped)
    if report.before:
        command = f"phpq gallery upgrade {shlex.quote(str(folder))}"
        rows.append(
            ("kept", f"version {report.before:,}; go back to it with: {command} --rollback")
        )
        rows.append(("", f"drop it with: {command} --drop-old"))
    return rows


@gallery.command()
def rename(
    folder: Folder,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A label.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    as_json: AsJson = False,
) -> None:
    """Rename a label, or merge it with another that has the new name. No image is read."""
    from phpq.gallery.labels import rename_labels
    from phpq.gallery.store import GalleryStore

    changed = rename_labels(GalleryStore.open(folder), {old: new})
    print_result({"changed": changed}, [("renamed", plural(changed, "image"))], as_json=as_json)


@gallery.command()
def relabel(
    folder: Folder,
    id: Annotated[str, typer.Argument(metavar="ID", help="An image of the gallery.")],
    label: Annotated[
        str | None, typer.Argument(metavar="LABEL", help="Its new label; or give --clear.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take its label away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give an image another label, or none."""
    from phpq.gallery.labels import relabel as change_label
    from phpq.gallery.store import GalleryStore

    if (label is None) != clear:
        raise ConfigError("Give the image either a LABEL, or none with --clear.")
    changed = change_label(GalleryStore.open(folder), [id], label)
    print_result({"changed": changed}, [("relabelled", plural(changed, "image"))], as_json=as_json)


@gallery.command()
def delete(
    folder: Folder,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Images of the gallery.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="EXPR", help="All images for which this is true.")
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
    """Check every file and code against what was written; exit code 1 if something is wrong.

    A repair sets broken files aside, goes back to the last good version, encodes again what lost
    its code, and names what had to be dropped.
    """
    from phpq.gallery.repair import verify_gallery

    report = verify_gallery(folder, repair=repair)
    rows = [("problem", text) for text in report.problems]
    rows += [("repaired", text) for text in report.repairs]
    rows += few_rows("lost", report.lost)
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
