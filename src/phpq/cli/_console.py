"""What commands share: options, the environment, results on stdout, all else on stderr."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from phpq.config import RunConfig
    from phpq.errors import PhpqError

# What a system says of a place that it does not let us write to.
_REFUSALS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOTDIR", "ENAMETOOLONG")
)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Runtime = Annotated[
    str,
    typer.Option(help="What runs the model: auto, torch, onnx or int8 (after phpq export --int8)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Searchable = Annotated[
    Path,
    typer.Argument(
        metavar="GALLERY|RUN",
        help="A folder that phpq index wrote, or an evaluated run of phpq train.",
    ),
]


def home() -> Path | None:
    """Return the folder of downloads that PHPQ_HOME names, if it does."""
    named = os.environ.get("PHPQ_HOME")
    return Path(named).expanduser() if named else None


def config_table(config: RunConfig, *, changed: bool = False) -> Table:
    """Lay out every setting, a line or two per stage, or only those that are not the default."""
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
            if changed and value == defaults[stage][name]:
                continue
            shown = ",".join(map(_plain, value)) if isinstance(value, list) else _plain(value)
            style = "dim" if value == defaults[stage][name] else "bold cyan"
            # No-break: a name and its value stay on one line.
            text.append(f"{name}={shown}".replace(" ", "\N{NO-BREAK SPACE}"), style).append("  ")
        if text:
            table.add_row(stage, text)
    return table


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


Progress = Callable[[str, int, int], None]  # what is done, how much, of how much


def is_gallery(folder: Path) -> bool:
    """Tell a gallery, whole or damaged, from a run."""
    return (folder / "manifest.json").is_file() or (folder / "images.lance").is_dir()


def is_run(folder: Path) -> bool:
    """Tell a run, or a saved model, from a data set."""
    from phpq.config import CONFIG_FILE

    return (folder / CONFIG_FILE).is_file()


def results() -> Console:
    """Return the console of results."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def messages() -> Console:
    """Return the console of progress and remarks."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(content: dict[str, Any]) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_error(title: str, text: str) -> None:
    """Write a message to stderr, unwrapped, so that a path in it stays in one piece."""
    from rich.text import Text

    messages().print(Text.assemble((title, "bold red"), " ", text), soft_wrap=True)


def report_error(error: PhpqError) -> None:
    """Write a mistake of the user to stderr, with the code that `phpq doctor` explains."""
    print_error(f"error[{error.code}]:" if error.code else "error:", str(error))


def refused_place(error: OSError) -> PhpqError | None:
    """Return the message for a place that cannot be written to; None for any other failure."""
    from phpq.errors import ConfigError

    place = Path(os.fsdecode(error.filename or ""))
    ours = place.name.startswith(".") and place.suffix == ".tmp"  # beside what the user named
    place = place.parent if ours else place
    absent = ours and error.errno == errno.ENOENT
    if not error.filename or (error.errno not in _REFUSALS and not absent):
        return None
    return ConfigError(
        f"{str(place)!r} cannot be used: {error.strerror}. Name a place that you may write to and "
        "that has room."
    )


def print_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Write names and values to stdout, a line each, unwrapped: a path can be copied."""
    from rich.text import Text

    console = results()
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        console.print(Text.assemble((name.ljust(width), "bold"), value), soft_wrap=True)


def print_result(
    content: dict[str, Any], rows: Sequence[tuple[str, str]], *, as_json: bool
) -> None:
    """Write what a command found: all of it as JSON, or the rows of facts for people."""
    if as_json:
        print_json(content)
    else:
        print_facts(rows)


def few_rows(name: str, lines: Sequence[str], most: int = 20) -> list[tuple[str, str]]:
    """Lay out the first of some lines, each under the same name, and count the others."""
    rest = [("", f"... and {len(lines) - most:,} more")] if len(lines) > most else []
    return [*((name, line) for line in lines[:most]), *rest]


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


def doubt_rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    """Tell whether a gallery or a model knows how likely answers are, and how much it can say."""
    names = f"{told['parents']:,} name{'' if told['parents'] == 1 else 's'}"
    parents = [("parents", names)] if told["parents"] else []
    if not told["known"]:
        return [("probabilities", f"not known: {told['why_not']}"), *parents]
    images = {
        "photos": "photos",
        "gallery": "of its images",
        "model": "images that the model did not learn from",
    }[told["by"]]
    limit = f"{100 * told['wrong_at_most']:g}%"
    shares = f"with at most {limit} wrong, {told['named']:.0%} of photos get their name"
    if told["parents"]:
        shares += f", {told['answered']:.0%} that or a parent's"
    fitted = f"fitted to {told['images']:,} {images}"
    return [("probabilities", f"{fitted};"), ("", shares), *parents]


def warn_skipped(reasons: Sequence[str]) -> None:
    """Name the first images that could not be read, and count the others."""
    console = messages()
    for reason in reasons[:10]:
        console.print(f"left out: {reason}", style="yellow", markup=False, soft_wrap=True)
    if len(reasons) > 10:
        console.print(f"... and {len(reasons) - 10:,} more; see --json", style="yellow")


def table_of(title: str, numbers: Sequence[str], *, first: str = "") -> Table:
    """Return an empty table of columns of numbers, after one of text if that has a heading."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    if first:
        table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


@contextmanager
def progress_bars(*, in_bytes: bool = False) -> Iterator[Progress]:
    """Show a bar for each thing that is done, on stderr; `in_bytes` also shows a speed."""
    from rich import progress

    console = messages()
    count: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(),)
    if in_bytes:
        count = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    bars = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        *count,
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, progress.TaskID] = {}

    def advance(title: str, done: int, total: int) -> None:
        if title not in tasks:
            tasks[title] = bars.add_task(title, total=total)
        bars.update(tasks[title], completed=done, total=total)

    with bars:
        yield advance
