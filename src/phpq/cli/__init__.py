"""The command `phpq`: one file per command, imported when the command is used.

A mistake that the user can fix (any `PhpqError`, a disk that is full or read-only) is one message
on stderr and exit code 2; Ctrl-C is exit code 130; anything else is our own mistake and keeps its
traceback.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# Each is the function of its name, or the group, in the module of its name.
COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "compare",
    "index",
    "search",
    "serve",
    "gallery",
    "audit",
    "advise",
    "download",
    "info",
    "doctor",
    "export",
    "card",
    "reproduce",
)


def with_address(words: Sequence[str]) -> list[str]:
    """Give every bare `--ray` the address "local": options here have a value, or are a flag.

    The word after `--ray` is its address if it looks like one; what follows `--` is left alone.
    """
    from phpq.cluster.connection import LOCAL, is_address

    done: list[str] = []
    for place, word in enumerate(words):
        if word == "--":
            return [*done, *words[place:]]
        done.append(word)
        following = words[place + 1] if place + 1 < len(words) else ""
        if word == "--ray" and not is_address(following):
            done.append(LOCAL)
    return done


def _tidied(command: Any, ctx: Any) -> Any:
    """Return a command whose help fills the terminal, without a type behind every flag."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    asking = command.get_help_option(ctx) if ctx is not None else None
    for option in (*command.params, asking):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for child in getattr(command, "commands", {}).values():
        _tidied(child, ctx)
    return command


class _Group(TyperGroup):
    """Finds commands lazily, and turns errors into messages and exit codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # the names, for help and for hints

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command and return the command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        target = getattr(importlib.import_module(f"phpq.cli.{cmd_name}"), cmd_name)
        if not isinstance(target, typer.Typer):
            command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            command.command(cmd_name)(target)
            return _tidied(typer.main.get_command(command), ctx)
        group = typer.main.get_command(target)  # a command with commands of its own
        group.name = cmd_name
        return _tidied(group, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        return super().parse_args(ctx, with_address(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        from phpq.cli._console import print_error, refused_place, report_error
        from phpq.cli._launch import MISUSE, rank0_reports
        from phpq.errors import EXTRAS, PhpqError, missing_extra

        try:
            return super().invoke(ctx)
        except MISUSE:
            if rank0_reports():
                raise typer.Exit(2) from None
            raise
        except PhpqError as error:
            report_error(error)
            raise typer.Exit(2) from error
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            report_error(missing_extra(error, f"phpq {ctx.invoked_subcommand}"))
            raise typer.Exit(2) from error
        except OSError as error:
            refused = refused_place(error)
            if refused is None:
                raise
            report_error(refused)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as interrupt:
            print_error("interrupted.", str(interrupt))
            raise typer.Exit(130) from interrupt


app = typer.Typer(
    name="phpq",
    cls=_Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from phpq._version import __version__

        typer.echo(f"phpq {__version__}")
        raise typer.Exit


# What `phpq` alone shows; every command is in `phpq --help`.
FIRST = """\
phpq finds images of the same species, breed or model among look-alikes,
in a few bytes per image.

  phpq demo                             see it work: no data, GPU or network
  phpq train birds/ --out runs/birds    learn; birds/ has one folder per class
  phpq index birds.gallery birds/ --model runs/birds
                                        put images into a gallery
  phpq search birds.gallery photo.jpg   what looks like this photo
  phpq serve birds.gallery --open       the same on a web page

All commands: phpq --help. One command: phpq COMMAND --help.
Something wrong? phpq doctor"""


@app.callback(invoke_without_command=True)
def _phpq(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fine-grained image search in a few bytes per image."""
    if context.invoked_subcommand is None:
        typer.echo(FIRST)


def main() -> None:
    """Run the command line."""
    app(prog_name="phpq")
