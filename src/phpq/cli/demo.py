"""`phpq demo`: nothing in, a report of learned codes on drawn birds out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import messages, print_facts, print_json, results, table_of

if TYPE_CHECKING:
    from phpq.demo import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the runs.")] = Path(
        "phpq-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Draw other birds, and start elsewhere.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Takes seconds: everything runs, nothing is learned.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json as well.")] = False,
) -> None:
    """See it work in minutes, without data, network or GPU: learn drawn birds, write a report."""
    from phpq.demo import run_demo
    from phpq.training import TerminalReporter

    reporter = TerminalReporter(messages())
    try:
        result = run_demo(out, seed=seed, quick=quick, reporter=reporter)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing was changed.") from None
    finally:
        reporter.finish()
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result)


def _print(result: DemoResult) -> None:
    found = dict(sorted(result.evaluations.items()))
    lengths = [f"{bits} bits" for bits in found]
    table = table_of("drawn birds, MAP in per cent", lengths, first="search over")
    maps = [
        [one.map_percent for one in (e.codes, e.posthoc_pq, e.soft, e.float_search) if one]
        for e in found.values()
    ]
    names = ("PHPQ codes", "post-hoc PQ", "float against soft reconstructions", "float search")
    for name, *values in zip(names, *maps, strict=True):
        style = "bold" if name == "PHPQ codes" else None
        table.add_row(name, *(f"{value:.2f}" for value in values), style=style)
    results().print(table)
    print_facts(
        (
            *((("quick run", "the figures say nothing"),) if result.quick else ()),
            ("took", f"{result.seconds:.0f} s"),
            ("report", str(result.folder / "report.html")),
            ("figures", str(result.folder / "metrics.json")),
            ("runs", str(result.folder / "runs")),
            *(("next" if not n else "", c) for n, (c, _) in enumerate(result.commands())),
        )
    )
