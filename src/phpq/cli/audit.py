"""`phpq audit`: a gallery in, what a person should look at out; `--page` decides in the browser."""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from phpq.cli._console import AsJson, Device, messages, plural, print_result, progress_bars
from phpq.cli.gallery import Folder
from phpq.errors import ConfigError

_SHOWN = 10  # of each kind, in the terminal


def audit(
    folder: Folder,
    where: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Only images for which this is true.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Decide in the browser: keep, relabel, delete, merge.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo the last decision, and do nothing else.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the page; 0 takes a free one.")
    ] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find copies, wrong labels, outliers, what to label next, and labels that are confused.

    It changes nothing. Decide on a page (--page, or the view Audit of phpq serve --writable); every
    decision can be undone, and what was decided is not shown again.
    """
    from phpq.audit.decisions import left_open, list_decisions
    from phpq.audit.decisions import undo as undo_last
    from phpq.audit.report import audit_gallery, keep_report
    from phpq.gallery.models import load_model
    from phpq.gallery.store import GalleryStore

    if page and (as_json or undo):
        raise ConfigError("--page goes with neither --json nor --undo.")
    store = GalleryStore.open(folder)
    if undo:
        last = undo_last(store)
        told = f"{last.action}, {plural(len(last.ids), 'image')}"
        print_result(last.to_dict(), [("undone", told)], as_json=as_json)
        return
    with progress_bars() as progress:
        found = audit_gallery(
            store,
            lambda: load_model(store.folder, store.manifest, device),
            where=where,
            progress=progress,
        )
    keep_report(store.folder, found)
    content = left_open(found.to_dict(), list_decisions(store.folder))
    if page:
        _serve(folder, port, device)
        return
    print_result(content, _facts(content, folder), as_json=as_json)


def _facts(found: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Say what was found and not decided yet, the first of each kind."""
    rows = [("images", f"{found['images']:,}, compared by {found['vectors']}")]
    groups = [
        f"{' = '.join(each['ids'][:4])}{' ...' if len(each['ids']) > 4 else ''}"
        f"{' (equal files)' if each['exact'] else ''}"
        for each in found["copies"]
    ]
    rows += _listed("copies", groups, plural(len(groups), "group"))
    wrong = [
        f"{each['id']}: {each['label']}, looks like {each['suggested']} ({each['wrong']:.0%} wrong)"
        for each in found["wrong_labels"]
    ]
    share = found["wrong_share"]
    told = f", about {share:.1%} of all" if share and wrong else ""
    rows += _listed("labels", wrong, f"{len(wrong):,} that look wrong{told}")
    far = [f"{each['id']}: {each['label'] or 'no label'}" for each in found["outliers"]]
    rows += _listed("outliers", far, plural(len(far), "image"))
    bare = [f"{each['id']}: {each['suggested'] or 'unknown'}?" for each in found["to_label"]]
    rows += _listed("label next", bare, plural(len(bare), "image"))
    pairs = [f"{' / '.join(each['labels'])}: {each['share']:.0%}" for each in found["confused"]]
    rows += _listed("confused", pairs, plural(len(pairs), "pair") + " of labels")
    rows += [("note", note) for note in found["notes"]]
    kinds = ("copies", "wrong_labels", "outliers", "to_label", "confused")
    if any(found[kind] for kind in kinds):
        rows.append(("next", f"phpq audit {shlex.quote(str(folder))} --page   decide on each"))
    return rows


def _listed(name: str, lines: list[str], summary: str) -> list[tuple[str, str]]:
    more = len(lines) - _SHOWN
    rest = [("", f"... and {more:,} more; see --json")] if more > 0 else []
    return [(name, summary), *(("", line) for line in lines[:_SHOWN]), *rest]


def _serve(folder: Path, port: int, device: str) -> None:
    """Serve the page on this machine alone, writable with a token that only this browser gets."""
    from phpq.cli.serve import listen, run
    from phpq.gallery import Gallery
    from phpq.serve.settings import ServerSettings

    token = secrets.token_urlsafe(32)
    settings = ServerSettings(port=port, writable=True, token=token)
    with listen(settings) as listener:
        messages().print("Only this browser may decide: the address holds a secret.")
        gallery: Any = Gallery.open(folder, device=device)
        run(gallery, settings, listener, path=f"/#/audit?token={token}")
