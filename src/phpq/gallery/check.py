"""A gallery folder in, a report of everything that is wrong with it out, the model included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phpq.errors import PhpqError
from phpq.gallery.encoding import encode_again
from phpq.gallery.manifest import read_manifest
from phpq.gallery.of_run import model_folder
from phpq.gallery.records import Record
from phpq.gallery.repair import VerifyReport, verify_store


def verify_gallery(folder: Path, *, repair: bool = False) -> VerifyReport:
    """Read the whole gallery and its model; fix what can be fixed.

    Args:
        folder: The gallery.
        repair: See `verify_store`. A model that is broken or another one cannot be fixed: the
            report says what to do.
    """

    def encode(records: Sequence[Record]) -> Sequence[Record | None]:
        from phpq.model import load

        return encode_again(load(model_folder(folder)), records)

    model_problem = _check_model(folder)
    usable = encode if model_problem is None else None
    report = verify_store(folder, repair=repair, encode=usable)
    model_problem = _check_model(folder)  # the manifest may have been fixed
    if model_problem is None:
        return report
    return replace(
        report,
        problems=(*report.problems, model_problem),
        model_sound=False,
    )


def _check_model(folder: Path) -> str | None:
    """Say what is wrong with the model of a gallery; None if nothing is."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    try:
        read_card(model_folder(folder))
        fingerprint = load(model_folder(folder), device="cpu").fingerprint()
    except PhpqError as error:
        return f"the model cannot be read: {error} Copy the run that made the gallery into model/."
    try:
        expected = read_manifest(folder).model_fingerprint
    except PhpqError:
        return None  # reported as a problem of the manifest
    if fingerprint != expected:
        return (
            "model/ holds another model than the one that made the codes. Copy config.json and "
            "weights.safetensors of the right run into it, or index the images again."
        )
    return None
