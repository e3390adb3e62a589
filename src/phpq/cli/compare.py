"""`phpq compare`: a data set in, one page out of all that it could be searched with."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli._console import (
    AsJson,
    home,
    messages,
    print_facts,
    print_json,
    results,
    table_of,
    warn_skipped,
)

if TYPE_CHECKING:
    from phpq.compare.run import Options


def compare(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders, a CSV or Parquet table, cub200, dogs120 or plumage."
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="A model that was tuned elsewhere, in place of learning here; may be repeated.",
        ),
    ] = None,
    trunk: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A pretrained network; phpq info --trunks lists them."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A timm model, such as resnet50. (default: resnet18)")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Those of the frozen trunk: hub, none, or a FILE. (default: hub for photographs; "
            "for plumage they are learned on other species)"
        ),
    ] = None,
    rows: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Size of the gallery for weight and speed; rows beyond the real ones are made up. "
            "May be repeated. (default: the real one)",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="How long it may take; what does not fit is made smaller.")
    ] = 20.0,
    hold_out_classes: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Learn nothing from the last SHARE of the classes: they are the unseen ones. "
            "(default: 0.2; those that a --model held out)",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and its files.")] = Path("compare"),
    seed: Annotated[int | None, typer.Option(help="Short for --set training.seed=N")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="STAGE.FIELD=VALUE", help="One setting of what is learned here."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare phpq with its alternatives on your images, and say which to use.

    One page shows quality, bytes and speed of float search, binary codes, RaBitQ, PQ, OPQ, IVFPQ,
    HNSW, classifiers and phpq. Without --model, phpq learns here, over the frozen trunk.
    """
    if trunk is not None and backbone is not None:
        raise typer.BadParameter("it names a backbone already.", param_hint="--trunk")
    from phpq.compare.run import Options

    short = {"training.seed": seed, "model.backbone": backbone}
    named = [f"{name}={value}" for name, value in short.items() if value is not None]
    options = Options(
        models=tuple(model or ()),
        trunk=trunk,
        settings=(*named, *(settings or ())),
        weights=weights,
        rows=tuple(rows or ()),
        minutes=minutes,
        hold_out=hold_out_classes,
        home=home(),
    )
    content = _compare(source, out, options)
    warn_skipped([image["reason"] for image in content["skipped"]])
    if as_json:
        print_json(content | {"folder": str(out)})
    else:
        _print(content, out)


def _compare(source: str, out: Path, options: Options) -> dict[str, Any]:
    from phpq.compare.run import compare

    console = messages()

    def say(text: str) -> None:
        console.print(text, style="dim", markup=False)

    if find_spec("torch") is None:
        return compare(source, out, options, say=say)
    from phpq.training import TerminalReporter

    reporter = TerminalReporter(console)
    try:
        return compare(source, out, options, reporter=reporter, say=say)
    finally:
        reporter.finish()


def _print(content: dict[str, Any], out: Path) -> None:
    from phpq.compare.page import short_name

    names = ("R@1", "MAP", "new R@1", "bytes", "queries/s")
    table = table_of(str(content["dataset"]), names, first="way to search")
    table.columns[0].no_wrap = True
    for row in content["rows"]:
        speed = row["speeds"][-1]
        shares = ("" if row[n] is None else f"{row[n]:.1f}" for n in ("r1", "map", "unseen_r1"))
        style = "bold" if row["group"] == "phpq" else None
        name = short_name(row["name"]) + " *" * row["uses_labels"]
        fast = (f"{speed['memory']:,.1f}", f"{speed['one_thread']:,.0f}")
        table.add_row(name, *shares, *fast, style=style)
    results().print(table)
    print_facts([("*", "uses the labels of the gallery")])
    facts = [("left out", text) for text in (*content["left_out"], *content["notes"])]
    facts += [("advice", text) for text in content["advice"]]
    page = "compare.html" if find_spec("matplotlib") else "compare.json"
    facts.append(("page", str(out / page)))
    print_facts(facts)
