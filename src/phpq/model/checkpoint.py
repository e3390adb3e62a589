"""A model folder: `config.json` (settings, classes, origin) and `weights.safetensors`.

Beside them `chances.json`: how likely answers by its codes are, for galleries without a calibration
of their own. Whatever is missing or does not fit is an error. The card, the calibration and the
fingerprint of the weights are read without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq._version import __version__
from phpq.additive import MIN_CLASSES, MIN_IMAGES, Calibration
from phpq.config import CONFIG_FILE, RunConfig, parse, to_dict
from phpq.errors import ConfigError, FormatError, NotTrainedError
from phpq.files import write_json, write_text

if TYPE_CHECKING:
    from phpq.model.method import Method

WEIGHTS = "weights.safetensors"
STATE = "state.safetensors"  # what resuming a run needs, see training/run.py
GENERAL = "general.safetensors"  # its general embedding, see general.py
CHANCES = "chances.json"
FORMAT_VERSION = 1
FINGERPRINT = "fingerprint"  # key in the metadata of a file of weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What `config.json` says of a model."""

    config: RunConfig
    class_names: tuple[str, ...]
    dataset: str  # that it learned from, as given by the user


def write_card(folder: Path, card: ModelCard) -> None:
    """Write `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format_version": FORMAT_VERSION,
        "phpq_version": __version__,
        "dataset": card.dataset,
        "method": card.config.method.name,
        "bits": card.config.quantizer.bits,
        "config": to_dict(card.config),
        "class_names": list(card.class_names),
    }
    write_text(folder / CONFIG_FILE, json.dumps(content, indent=2) + "\n")


def read_card(folder: Path) -> ModelCard:
    """Read `config.json`."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FormatError(
            f"{str(folder)!r} is not a model folder: it has no {CONFIG_FILE}. "
            "Give the folder that `phpq train` wrote."
        )
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        version = content["format_version"]
        if version == FORMAT_VERSION:
            return ModelCard(
                config=parse(content["config"]),
                class_names=tuple(content["class_names"]),
                dataset=str(content["dataset"]),
            )
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged: {error}. Restore it from a copy, or train again."
        ) from error
    raise FormatError(
        f"{str(path)!r} has format version {version!r}; this phpq reads {FORMAT_VERSION}. "
        "Install the phpq version that wrote it, or train again."
    )


def interrupted_card(folder: Path) -> ModelCard:
    """Read the card of a run that is to be resumed."""
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(
            f"There is no run to resume in {str(folder)!r}: it has no {CONFIG_FILE}. "
            "Give the folder of an interrupted run, or start one without resuming."
        )
    return read_card(folder)


def write_weights(folder: Path, network: Method, *, epoch: int) -> None:
    """Write the weights of a network after `epoch` epochs."""
    from phpq.model.weights import write_safetensors

    state = network.state_dict()
    facts = {"format": "phpq", "epoch": str(epoch), FINGERPRINT: fingerprint_of_state(state)}
    write_safetensors(folder / WEIGHTS, state, facts)


def read_network(folder: Path, card: ModelCard) -> tuple[Method, int]:
    """Rebuild the network of a model folder; returns it with its epochs."""
    from phpq.model.method import build_method
    from phpq.model.weights import load_matching, read_safetensors

    path = folder / WEIGHTS
    if not path.is_file():
        raise NotTrainedError(
            f"{str(folder)!r} has no {WEIGHTS}: its training has not reached a checkpoint. "
            f"Continue it with: phpq train --resume {folder}"
        )
    tensors, metadata = read_safetensors(path)
    network = build_method(card.config, len(card.class_names), load_weights=False)
    load_matching(network, tensors, path)
    return network.eval(), int(metadata.get("epoch", "0"))


def fingerprint_of_state(state: Mapping[str, Any]) -> str:
    """Hash named arrays or tensors; float16 is hashed as the float32 that it is loaded as."""
    digest = hashlib.sha256()
    for key, value in sorted(state.items()):
        array = np.asarray(value if isinstance(value, np.ndarray) else value.detach().cpu())
        array = array.astype(np.float32) if array.dtype == np.float16 else array
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def stored_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file of weights: from its metadata, or computed if it is old."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            if fingerprint := (file.metadata() or {}).get(FINGERPRINT):
                return str(fingerprint)
            return fingerprint_of_state({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged or not a safetensors file: {error}. "
            "Restore it from a copy, or train again."
        ) from error


def write_chances(folder: Path, calibration: Calibration, fingerprint: str) -> None:
    """Write the calibration of the weights with this fingerprint."""
    write_json(folder / CHANCES, {FINGERPRINT: fingerprint} | calibration.to_facts())


def read_chances(folder: Path, fingerprint: str) -> Calibration | None:
    """Read what `write_chances` wrote; None if there is no file.

    A FormatError if it is damaged, or belongs to weights with another fingerprint.
    """
    path = folder / CHANCES
    try:
        facts = json.loads(path.read_text("utf-8"))
        calibration, owner = Calibration.from_facts(facts), facts[FINGERPRINT]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged: {error}. Restore it from a copy, or delete it: answers "
            "then carry no probability."
        ) from error
    if owner != fingerprint:
        raise FormatError(
            f"{str(path)!r} does not belong to the weights beside it. Copy it from the run that "
            "they came from, or delete it: answers then carry no probability."
        )
    return calibration


def describe_chances(folder: Path) -> dict[str, Any]:
    """Return whether a model has a calibration, and what that allows, as plain data."""
    calibration = None
    if (folder / CHANCES).is_file():  # otherwise an old file of weights would be hashed in vain
        calibration = read_chances(folder, _fingerprint_here(folder))
    content = {"known": False, "children": 0, "parents": 0}
    if calibration is None or calibration.probabilities is None:
        need = f"{MIN_IMAGES} test images of {MIN_CLASSES} kinds"
        return content | {"why_not": f"phpq train fits them where there are at least {need}"}
    return content | {"known": True, "by": "model"} | calibration.probabilities.summary()


def _fingerprint_here(folder: Path) -> str:
    """Return the fingerprint of a folder's weights, or of its ONNX file if it has no weights."""
    from phpq.model.interface import ENCODER
    from phpq.model.onnx_file import read_facts

    if (folder / WEIGHTS).is_file():
        return stored_fingerprint(folder / WEIGHTS)
    return read_facts(folder / ENCODER).get(FINGERPRINT, "")


def copy_chances(source: Path | None, folder: Path, fingerprint: str) -> None:
    """Copy the calibration of these weights; without a valid one the folder has none."""
    calibration = None
    with suppress(FormatError):
        calibration = source and read_chances(source, fingerprint)
    if calibration:
        write_chances(folder, calibration, fingerprint)
    else:
        (folder / CHANCES).unlink(missing_ok=True)
