"""`phpq card`: the card of a model, for people who did not train it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phpq.cli._console import AsJson, print_result


def card(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A folder that phpq train or Model.save wrote.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file (default: README.md in that folder)")
    ] = None,
    licence: Annotated[
        str, typer.Option(help="Terms of the model, as the hub names them: apache-2.0, mit, ...")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a model card: data, recipe, results on seen and unseen kinds, licence and limits."""
    from phpq.model.sharing import write_model_card

    path = write_model_card(run, out=out, licence=licence)
    print_result({"card": str(path)}, [("card", str(path))], as_json=as_json)
