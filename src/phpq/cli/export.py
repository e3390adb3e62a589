"""`phpq export`: a trained model to ONNX, or a coded gallery to a faiss index."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import AsJson, home, is_gallery, print_result, readable_bytes
from phpq.errors import ConfigError

if TYPE_CHECKING:
    from phpq.codes import Space
    from phpq.model import TorchModel


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
            help="onnx: the encoder, and the general embedding beside it. general: that alone. "
            "faiss: the codes of a gallery or evaluated run.",
        ),
    ] = Format.onnx,
    out: Annotated[
        Path | None, typer.Option(help="The file (default: where the model is, for its use there)")
    ] = None,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="The encoder in 8-bit integers, calibrated on images of its data set."
        ),
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="With --int8: other images to calibrate on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the encoder as ONNX, or the codes as a faiss index, for use elsewhere."""
    if (int8 and form is not Format.onnx) or (images is not None and not int8):
        raise ConfigError("--int8 is for --format onnx, and --images for --int8.")
    if form is Format.faiss:
        facts = _faiss(target, out)
    elif int8:
        facts = _int8(target, out, images)
    else:
        facts = _onnx(target, out, "general" if form is Format.general else "learned")
    rows = [(name, str(value)) for name, value in facts.items() if name != "bytes"]
    if "bytes" in facts:
        rows.insert(2, ("size", readable_bytes(float(str(facts["bytes"])))))
    if int8 and out is None:
        command = f"phpq search {shlex.quote(str(target))} PHOTO --runtime int8"
        rows.append(("next", f"{command}   serve takes it too"))
    print_result(facts, rows, as_json=as_json)


def _load(target: Path) -> tuple[TorchModel, Path]:
    """Return the model of a run, or of a gallery's newest version, and where it is."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    folder = target
    if is_gallery(target):
        from phpq.gallery.models import model_folder
        from phpq.gallery.store import GalleryStore

        folder = model_folder(target, GalleryStore.open(target).manifest)
    read_card(folder)  # names a missing folder; `load` would look for it on the hub
    return load(folder, device="cpu", runtime="torch"), folder


def _onnx(target: Path, out: Path | None, space: Space) -> dict[str, object]:
    from phpq.model.export import export_onnx
    from phpq.model.interface import ONNX_FILES

    model, folder = _load(target)
    path = export_onnx(model, out or folder / ONNX_FILES[space], space=space)
    facts = _told(path, model, space)
    if out is None and space == "learned" and model.has_general:
        beside = export_onnx(model, folder / ONNX_FILES["general"], space="general")
        facts["general"] = str(beside)
    return facts


def _int8(target: Path, out: Path | None, images: str | None) -> dict[str, object]:
    from phpq.api import as_dataset, open_origin
    from phpq.model.int8 import export_int8
    from phpq.model.interface import INT8

    model, folder = _load(target)
    if images is None:
        dataset = open_origin(model.card.dataset, home=home())
    else:
        dataset = as_dataset(images, home=home())
    path = export_int8(model, dataset.train, out or folder / INT8)
    return _told(path, model, "learned")


def _told(path: Path, model: TorchModel, space: Space) -> dict[str, object]:
    side, books = model.card.config.data.store_size, model.codebooks.num_codebooks
    codes = f"codes: (N, {books}) uint8; " if space == "learned" else ""
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
