"""`phpq evaluate`: a run folder in, tables, curves, pictures and a searchable gallery out."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import (
    AsJson,
    Device,
    Runtime,
    home,
    messages,
    print_facts,
    print_json,
    progress_bars,
    results,
    table_of,
    warn_skipped,
)

if TYPE_CHECKING:
    from phpq.data import Dataset
    from phpq.evaluation.run import Evaluation
    from phpq.evaluation.unseen import UnseenScores
    from phpq.model.checkpoint import ModelCard


def evaluate(
    run: Annotated[Path, typer.Argument(help="A folder that phpq train wrote.")],
    source: Annotated[
        str | None,
        typer.Argument(help="A data set. (default: the one of the run)", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files (default: RUN/evaluation)")
    ] = None,
    own_codebooks: Annotated[
        bool,
        typer.Option(
            "--own-codebooks", help="Also measure codebooks fitted to the gallery and its labels."
        ),
    ] = False,
    device: Device = "auto",
    runtime: Runtime = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how well a run searches: MAP, P@N and speed, beside float search and PQ."""
    from phpq import api
    from phpq.model.checkpoint import read_card

    card = read_card(run)
    if source is None:
        dataset = api.open_origin(card.dataset, home=home())
        _warn_changed(dataset, card)
    else:
        dataset = api.as_dataset(source, home=home())
    with progress_bars() as progress:
        evaluation = api.evaluate(
            run,
            dataset,
            out,
            device=device,
            runtime=runtime,
            own_codebooks=own_codebooks,
            progress=progress,
        )
    warn_skipped([image.reason for image in evaluation.skipped])
    if as_json:
        print_json(evaluation.to_dict() | {"folder": str(evaluation.folder)})
    else:
        _print(evaluation, run)


def _warn_changed(dataset: Dataset, card: ModelCard) -> None:
    """Say it if the data set of a run has other classes than when it was trained."""
    from phpq.data import learned_part

    now = learned_part(dataset, card.config.data).class_names
    if now != card.class_names:
        messages().print(
            f"{dataset.name} has changed since training: {len(now):,} classes to learn now, "
            f"{len(card.class_names):,} learned then, or others by name. Images that the model "
            "learned from may be among the queries: the scores flatter.",
            style="yellow",
            markup=False,
        )


def _print(evaluation: Evaluation, run: Path) -> None:
    from phpq.evaluation.page import score_cells

    shown = [name for name in score_cells(evaluation.codes) if name != "P@1 as added"]
    names = ("bytes", *shown)  # the report has all
    title = f"{evaluation.dataset}, {evaluation.bits} bits"
    table = table_of(title, names, first="search over")
    for name, scores in evaluation.ways.items():
        cells = score_cells(scores)
        numbers = (f"{cells[name]:.2f}" for name in shown)
        style = "bold" if scores is evaluation.codes else None
        table.add_row(name, f"{scores.bytes_per_image:,}", *numbers, style=style)
    table.columns[0].overflow = "fold"
    results().print(table)
    if evaluation.unseen is not None:
        _print_new_kinds(evaluation.unseen)
    print_facts(_facts(evaluation, run))


def _print_new_kinds(unseen: UnseenScores) -> None:
    from phpq.evaluation.page import kind_cells, kind_name
    from phpq.evaluation.unseen import FIVE, UNSEEN

    shown = (UNSEEN, "unseen@all", FIVE)  # the report has all of them
    scores = [score for score in unseen.scores if score.protocol in shown]
    table = table_of("New kinds", tuple(kind_cells(scores[0])), first="protocol: search over")
    for score in scores:
        values = ("" if value is None else f"{value:.2f}" for value in kind_cells(score).values())
        table.add_row(f"{score.protocol}: {kind_name(score)}", *values)
    results().print(table)


def _facts(evaluation: Evaluation, run: Path) -> list[tuple[str, str]]:
    codes, timing, epochs = evaluation.codes, evaluation.timing, evaluation.epochs
    by_codes, by_floats = 1000 * timing.code_seconds, 1000 * timing.float_seconds
    speed = f"{by_codes:.1f} ms; float search takes {by_floats:.1f} ms ({timing.ratio:.1f} x)"
    rows = [
        ("asked", f"{codes.queries:,} queries in a gallery of {codes.gallery:,} images"),
        ("speed", f"{timing.queries:,} queries in {speed}"),
    ]
    lowest, highest = (f"{value:.2f}" for value in codes.map_range_percent)
    if lowest != highest:
        rows.append(("ties", f"MAP from {lowest} to {highest}, by the order of tied images"))
    if evaluation.held_out:
        rows.append(("queries", f"{evaluation.held_out} per class, held out of the training split"))
    if epochs is not None:
        last, best = epochs.last, epochs.best
        last_map = f"MAP {last.map:.2f} after the last epoch ({last.epoch})"
        rows.append(("run", f"{last_map}; best {best.map:.2f} (epoch {best.epoch})"))
    if evaluation.unseen is not None:
        rows += [("left out", reason) for reason in evaluation.unseen.left_out]
    if find_spec("matplotlib") is None:
        rows.append(("skipped", "report.html and its pictures: pip install matplotlib brings them"))
    else:
        rows.append(("report", str((evaluation.folder or run) / "report.html")))
    name = shlex.quote(str(run))
    rows += [("next", f"phpq search {name} PHOTO"), ("", f"phpq serve {name} --open")]
    return rows
