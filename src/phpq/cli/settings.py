"""From options and the environment to settings: the only place that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from phpq.config import RunConfig

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Searchable = Annotated[
    Path,
    typer.Argument(
        metavar="GALLERY|RUN",
        help="A folder that phpq index wrote, or an evaluated one of phpq train.",
    ),
]


def home() -> Path | None:
    """Return the folder of downloads that PHPQ_HOME names, if it does."""
    named = os.environ.get("PHPQ_HOME")
    return Path(named).expanduser() if named else None


def config_table(config: RunConfig) -> Table:
    """Lay out every setting, a line or two per stage; what is not the default stands out."""
    from rich.table import Table
    from rich.text import Text

    from phpq.config import RunConfig, to_dict

    defaults = to_dict(RunConfig())
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for stage, fields in to_dict(config).items():
        text = Text()
        for name, value in fields.items():
            shown = ",".join(map(_plain, value)) if isinstance(value, list) else _plain(value)
            style = "dim" if value == defaults[stage][name] else "bold cyan"
            # No-break: a name and its value stay on one line.
            text.append(f"{name}={shown}".replace(" ", "\N{NO-BREAK SPACE}"), style).append("  ")
        table.add_row(stage, text)
    return table


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
