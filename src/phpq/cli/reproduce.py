"""`phpq reproduce`: the name of a table in, the paper's table beside ours out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import AsJson, Device, home, messages, print_result
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from phpq.reproduce.runner import GridResult

# Help texts too long for the signature.
TARGETS = (
    "headline, table1, variants, kappa, alpha, tau, future, pn-curves, efficiency, top10, all of "
    "these, or unseen."
)
DATASETS = "cub200, dogs120, plumage, a folder of class folders, or a table."
METHODS = "Only these methods, as phpq,pqn,itq. (default: all)"
RECIPE = "How variants of PHPQ are learned: ours, paper (as printed) or both."
SEEDS = "Seeds of the trainings. (default: 0,1,2; 0 for plumage)"
WEIGHTS = "Where backbones start: hub, none or a FILE. (default: hub; none for plumage)"
SETTING = "A setting of every cell; may be repeated."
PROCESSES = "Cells at once; 0: in this process. (default: as many as the machine carries)"
CACHE = "Folder of decoded images (default: in --out)"
COMMIT = "Commit of the code, where git does not know."
REPORT_ONLY = "Run nothing; write the pages of what is there."
NO_REPORT = "Run the cells and write no pages."


def reproduce(
    target: Annotated[str, typer.Argument(help=TARGETS)],
    dataset: Annotated[str, typer.Option(help=DATASETS)] = "cub200",
    bits: Annotated[str, typer.Option(help="Code lengths.")] = "16,32,48,64",
    methods: Annotated[str, typer.Option(help=METHODS, show_default=False)] = "",
    recipe: Annotated[str, typer.Option(help=RECIPE)] = "ours",
    seeds: Annotated[str | None, typer.Option(help=SEEDS)] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of every training. (default: 70)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: reproduce/DATASET)")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="STAGE.FIELD=VALUE", help=SETTING)
    ] = None,
    processes: Annotated[int | None, typer.Option(min=0, help=PROCESSES)] = None,
    device: Device = "auto",
    cache: Annotated[Path | None, typer.Option(help=CACHE)] = None,
    commit: Annotated[str | None, typer.Option(help=COMMIT)] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help=REPORT_ONLY)] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help=NO_REPORT)] = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's tables and figures again, ours beside theirs.

    Each training is a cell. Finished cells are kept: the same command, here or on another machine
    with a copy of the folder, goes on where it stopped.
    """
    from phpq.reproduce.command import Options, reproduce

    if report_only and no_report:
        raise typer.BadParameter(
            "leaves nothing to do with --no-report.", param_hint="--report-only"
        )
    options = Options(
        target=target,
        dataset=dataset,
        bits=_numbers("--bits", bits),
        seeds=None if seeds is None else _numbers("--seeds", seeds),
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        recipe=recipe,
        epochs=epochs,
        out=out,
        weights=weights,
        settings=settings or (),
        processes=processes,
        device=device,
        cache=cache,
        home=home(),
        commit=commit,
        report=not no_report,
        run=not report_only,
    )
    console = messages()
    result = reproduce(options, say=lambda text: console.print(text, markup=False, soft_wrap=True))
    print_result(result.to_dict(), _rows(result), as_json=as_json)
    if result.failed:
        raise typer.Exit(1)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} must be whole numbers with commas between them, as in 16,32."
        ) from error


def _rows(result: GridResult) -> list[tuple[str, str]]:
    rows = [
        ("cells", f"{len(result.ran)} run, {len(result.reused)} were there"),
        ("took", f"{result.seconds:.0f} s; the cells {result.cell_seconds:.0f} s in all"),
        ("folder", str(result.folder)),
    ]
    if result.failed:
        rows.append(("failed", ", ".join(sorted(result.failed))))
    if result.left:
        rows.append(("left", f"{len(result.left)}: {next(iter(result.left.values()))}"))
    return [*rows, *(("" if n else "page", str(page)) for n, page in enumerate(result.pages))]
