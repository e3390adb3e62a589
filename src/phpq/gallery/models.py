"""The model of a version: where it is, whether it made the codes, and its calibration.

    model/                  what the gallery was made with
    models/<fingerprint>/   what it was upgraded to

The manifest of a version names the one that made its codes.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cachetools import LRUCache

from phpq.additive import Calibration
from phpq.codes import Space
from phpq.errors import ConfigError, FormatError, NotTrainedError
from phpq.evaluation.coded import FOLDER
from phpq.gallery.folder import MANIFEST, Manifest, new_manifest, new_own_manifest, repair_command

if TYPE_CHECKING:
    from phpq.model import Model

MODEL = "model"  # the folder of the model that a gallery was made with
MODELS = "models"  # the folder of those that it was upgraded to
_HELD = 2  # models in memory: running queries may still need the old one


def is_run(folder: Path) -> bool:
    """Tell a run folder from a gallery."""
    return (folder / "config.json").is_file() and not (folder / MANIFEST).is_file()


def run_of(gallery: Path) -> Path | None:
    """Return the run whose evaluation a gallery is, and which is its model; None for others."""
    run = gallery.parent.parent
    inside_run = gallery.parent.name == FOLDER and is_run(run)
    return run if inside_run and not (gallery / MODEL).is_dir() else None


def model_folder(gallery: Path, manifest: Manifest | None) -> Path:
    """Return the folder of the model of a version; without a manifest, of the first one."""
    if manifest is not None and manifest.model:
        return gallery / MODELS / manifest.model
    return run_of(gallery) or gallery / MODEL


def model_calibration(gallery: Path, manifest: Manifest) -> tuple[Calibration, set[str]] | None:
    """Return the calibration of a version's model, and the classes that the model learned.

    None where it has none, as older models. The model is not loaded.
    """
    from phpq.model.checkpoint import read_card, read_chances

    home = model_folder(gallery, manifest)
    found = read_chances(home, manifest.model_fingerprint)
    return None if found is None else (found, set(read_card(home).class_names))


def as_model(model: Model | str | Path, device: str = "auto", runtime: str = "auto") -> Model:
    """Return a model, loaded by `phpq.load` if it is given by name."""
    from phpq.model import load

    if isinstance(model, str | Path):
        return load(model, device=device, runtime=runtime)
    return model


def fingerprint_of(model: Model, space: Space) -> str:
    """Return the fingerprint of a model's embeddings of a space."""
    return model.general_fingerprint() if space == "general" else model.fingerprint()


def is_made_by(manifest: Manifest, model: Model) -> bool:
    """Say whether a model made the codes of a version."""
    return fingerprint_of(model, manifest.space) == manifest.model_fingerprint


def manifest_for(
    model: Model,
    codebooks: Literal["model", "own"],
    *,
    bits: int,
    trust: float,
    keep_embeddings: bool,
) -> Manifest:
    """Return the manifest of a new gallery; `bits` and `trust` are for codebooks of its own."""
    if codebooks not in ("model", "own"):
        raise ConfigError(f"codebooks={codebooks!r} is not allowed; use 'model' or 'own'.")
    if codebooks == "own":
        return new_own_manifest(
            model.embedding_dim("general"),
            fingerprint_of(model, "general"),
            bits=bits,
            trust=trust,
            keep_embeddings=keep_embeddings,
        )
    return new_manifest(
        model.codebooks,
        model.fingerprint(),
        query_norm=model.query_norm,
        keep_embeddings=keep_embeddings,
    )


def load_model(
    folder: Path, manifest: Manifest, device: str = "auto", runtime: str = "auto"
) -> Model:
    """Load the model of a version; a `FormatError` if it did not make its codes."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    home = model_folder(folder, manifest)
    files = "config.json and weights.safetensors"
    try:
        read_card(home)  # fails for a missing folder; `load` would look for it on the hub
        model = load(home, device=device, runtime=runtime)
        files = "general.safetensors"
        made_them = is_made_by(manifest, model)
    except (FormatError, NotTrainedError) as error:
        if "phpq export" in str(error):  # the model is whole, and only its ONNX file is not there
            raise
        raise FormatError(
            f"The model of the gallery {str(folder)!r} cannot be read: {error} Copy {files} of its "
            f"run into {str(home)!r}, then look with: phpq gallery verify {folder}"
        ) from error
    if not made_them:
        raise FormatError(
            f"The codes of the gallery {str(folder)!r} were made by another model than the one in "
            f"{str(home)!r}. Put the model back that made them, or index the images again. "
            f"{repair_command(folder)}"
        )
    return model


def save_model(folder: Path, model: Model, name: str) -> None:
    """Save a model into `models` of a gallery, atomically, unless it is there."""
    home = folder / MODELS
    if (home / name).is_dir():
        return
    home.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=home, prefix=f".{name}.", suffix=".tmp"))
    try:
        model.save(made)
        made.chmod(0o755)  # mkdtemp makes it private
        made.replace(home / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


class Models:
    """The models of a gallery's versions, loaded on demand; the last ones stay in memory.

    Device and runtime are those of `phpq.load`.
    """

    def __init__(self, folder: Path, *, device: str = "auto", runtime: str = "auto") -> None:
        self._folder, self._device, self._runtime = folder, device, runtime
        self._held: LRUCache[str, Model] = LRUCache(_HELD)  # by fingerprint
        self._lock = threading.Lock()

    @classmethod
    def one(cls, folder: Path, model: Model, manifest: Manifest) -> Models:
        """Start with a loaded model, that of a version with this manifest."""
        models = cls(folder)
        models._held[manifest.model_fingerprint] = model
        return models

    def of(self, manifest: Manifest) -> Model:
        """Return the model that made the codes of a version."""
        with self._lock:
            name = manifest.model_fingerprint
            if name not in self._held:
                self._held[name] = load_model(self._folder, manifest, self._device, self._runtime)
            model: Model = self._held[name]
            return model
