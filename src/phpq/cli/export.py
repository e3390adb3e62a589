"""`phpq export`: a trained model to ONNX, or its coded gallery to a faiss index."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from phpq.cli.output import print_facts, print_json


class Format(StrEnum):
    """What can be written."""

    onnx = "onnx"
    faiss = "faiss"


def export(
    run: Annotated[Path, typer.Argument(help="A folder that phpq train wrote.")],
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="onnx: the encoder. faiss: the codes of the evaluated gallery."
        ),
    ] = Format.onnx,
    out: Annotated[
        Path | None, typer.Option(help="The file (default: RUN/model.onnx or RUN/gallery.faiss)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Take the encoder or the index to where your stack is."""
    facts = _onnx(run, out) if form is Format.onnx else _faiss(run, out)
    if as_json:
        print_json(facts)
    else:
        print_facts([(name, str(value)) for name, value in facts.items()])


def _onnx(run: Path, out: Path | None) -> dict[str, object]:
    from phpq.model import load
    from phpq.model.export import export_onnx

    model = load(run, device="cpu")
    side = model.card.config.data.store_size
    path = export_onnx(model, out or run / "model.onnx")
    return {
        "format": "onnx",
        "path": str(path),
        "bytes": path.stat().st_size,
        "input": f"pixels: (N, 3, {side}, {side}) uint8, RGB",
        "outputs": f"codes: (N, {model.codebooks.num_codebooks}) uint8; "
        f"embedding: (N, {model.codebooks.embedding_dim}) float32",
    }


def _faiss(run: Path, out: Path | None) -> dict[str, object]:
    from phpq.search import export_faiss

    path, rows, ids = export_faiss(run, out)
    return {"format": "faiss", "path": str(path), "rows": rows, "ids": str(ids)}
