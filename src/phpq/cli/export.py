"""`phpq export`: a trained model to ONNX, or a coded gallery to a faiss index."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import AsJson, is_gallery, print_result

if TYPE_CHECKING:
    from phpq.codes import Space


class Format(StrEnum):
    """What can be written."""

    onnx = "onnx"
    general = "general"
    faiss = "faiss"


def export(
    target: Annotated[
        Path,
        typer.Argument(metavar="RUN|GALLERY", help="A folder that phpq train or phpq index wrote."),
    ],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="onnx: the encoder. general: the general embedding, as ONNX. faiss: the codes of "
            "a gallery or evaluated run.",
        ),
    ] = Format.onnx,
    out: Annotated[Path | None, typer.Option(help="The file (default: inside the folder)")] = None,
    as_json: AsJson = False,
) -> None:
    """Take the encoder or the index to where your stack is."""
    if form is Format.faiss:
        facts = _faiss(target, out)
    else:
        facts = _onnx(target, out, "general" if form is Format.general else "learned")
    rows = [(name, str(value)) for name, value in facts.items()]
    print_result(facts, rows, as_json=as_json)


def _onnx(target: Path, out: Path | None, space: Space) -> dict[str, object]:
    from phpq.model import load
    from phpq.model.checkpoint import read_card
    from phpq.model.export import export_onnx

    folder = target / "model" if is_gallery(target) else target
    read_card(folder)  # names a missing folder; `load` would look for it on the hub
    model = load(folder, device="cpu")
    side = model.card.config.data.store_size
    learned = space == "learned"
    path = export_onnx(
        model, out or target / ("model.onnx" if learned else "general.onnx"), space=space
    )
    codes = f"codes: (N, {model.codebooks.num_codebooks}) uint8; " if learned else ""
    return {
        "format": "onnx",
        "path": str(path),
        "bytes": path.stat().st_size,
        "input": f"pixels: (N, 3, {side}, {side}) uint8, RGB",
        "outputs": f"{codes}embedding: (N, {model.embedding_dim(space)}) float32",
    }


def _faiss(target: Path, out: Path | None) -> dict[str, object]:
    from phpq.gallery import Gallery
    from phpq.gallery.export import write_faiss

    made = Gallery.open(target, device="cpu").to_faiss()
    path, names = write_faiss(made.index, made.ids, out or target / "gallery.faiss")
    return {"format": "faiss", "path": str(path), "rows": len(made.ids), "ids": str(names)}
