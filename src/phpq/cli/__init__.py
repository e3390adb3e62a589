"""The command `phpq`: one small file a command, imported when the command is used.

A mistake that the user can mend (any `PhpqError`) is one message on stderr and exit code 2; Ctrl-C
is exit code 130; anything else is our own mistake and keeps its traceback.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "demo": "phpq.cli.demo:demo",
    "train": "phpq.cli.train:train",
    "evaluate": "phpq.cli.evaluate:evaluate",
    "index": "phpq.cli.index:index",
    "search": "phpq.cli.search:search",
    "serve": "phpq.cli.serve:serve",
    "gallery": "phpq.cli.gallery:gallery",
    "advise": "phpq.cli.advise:advise",
    "download": "phpq.cli.download:download",
    "info": "phpq.cli.info:info",
    "export": "phpq.cli.export:export",
    "reproduce": "phpq.cli.reproduce:reproduce",
}


class _LazyCommands(Mapping[str, Any]):
    """The commands by name; a module is imported when its command is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMANDS[name].partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):  # a command with commands of its own
            group = typer.main.get_command(target)
            group.name = name
            return group
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command.command(name)(target)
        return typer.main.get_command(command)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    """Finds commands lazily, and turns errors into messages and exit codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, as the help shows them."""
        return list(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        from phpq.cli.ray_option import with_address

        return super().parse_args(ctx, with_address(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        from phpq.cli.launch import MISUSE, rank0_reports
        from phpq.cli.output import print_error
        from phpq.errors import PhpqError

        try:
            return super().invoke(ctx)
        except MISUSE:
            if rank0_reports():
                raise typer.Exit(2) from None
            raise
        except PhpqError as error:
            print_error("error:", str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as interrupt:
            print_error("interrupted.", str(interrupt))
            raise typer.Exit(130) from interrupt


app = typer.Typer(
    name="phpq",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from phpq._version import __version__

        typer.echo(f"phpq {__version__}")
        raise typer.Exit


@app.callback()
def _phpq(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fine-grained image search in a few bytes per image."""


def main() -> None:
    """Run the command line."""
    app(prog_name="phpq")
