"""A model folder: `config.json` (settings, classes, origin) and `weights.safetensors`.

Beside them `chances.json`, how likely answers by its codes are, for galleries that know no better.
On loading, the saved settings win; what the folder lacks or what does not fit is a clear error.
The card, chances and the fingerprint of the weights are read without torch.
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
from phpq.additive import LEAST_IMAGES, LEAST_KINDS, Calibration
from phpq.additive.chances import told_shares
from phpq.config import CONFIG_FILE, RunConfig, parse, to_dict
from phpq.errors import ConfigError, FormatError, NotTrainedError
from phpq.files import write_json, write_text
from phpq.hits import WRONG_AT_MOST

if TYPE_CHECKING:
    from phpq.model.method import Method

WEIGHTS = "weights.safetensors"
STATE = "state.safetensors"  # what resuming a run needs, see training/run.py
GENERAL = "general.safetensors"  # its general embedding, see general.py
CHANCES = "chances.json"
FORMAT_VERSION = 1
FINGERPRINT = "fingerprint"  # in the metadata of a file of weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model folder says of itself besides the weights."""

    config: RunConfig
    class_names: tuple[str, ...]
    dataset: str  # where it learned, as given by the user


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
    """Rebuild the network of a model folder; returns it with the epochs that it has learned."""
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
    """Hash named arrays or tensors; half precision counts as the float32 that it is loaded as."""
    digest = hashlib.sha256()
    for key, value in sorted(state.items()):
        array = np.asarray(value if isinstance(value, np.ndarray) else value.detach().cpu())
        array = array.astype(np.float32) if array.dtype == np.float16 else array
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def stored_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file of weights: its own word, or, of an older file, the hash."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            if told := (file.metadata() or {}).get(FINGERPRINT):
                return str(told)
            return fingerprint_of_state({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged or not a safetensors file: {error}. "
            "Restore it from a copy, or train again."
        ) from error


def write_chances(folder: Path, said: Calibration, fingerprint: str) -> None:
    """Write what was fitted to images that the weights with a fingerprint did not learn from."""
    write_json(folder / CHANCES, {FINGERPRINT: fingerprint} | said.to_facts())


def read_chances(folder: Path, fingerprint: str) -> Calibration | None:
    """Read what `write_chances` wrote; None where there is nothing.

    A FormatError if it is damaged, or of other weights than those with this fingerprint.
    """
    path = folder / CHANCES
    try:
        facts = json.loads(path.read_text("utf-8"))
        said, of = Calibration.from_facts(facts), facts[FINGERPRINT]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged: {error}. Restore it from a copy, or delete it: answers "
            "then carry no probability."
        ) from error
    if of != fingerprint:
        raise FormatError(
            f"{str(path)!r} does not belong to the weights beside it. Copy it from the run that "
            "they came from, or delete it: answers then carry no probability."
        )
    return said


def describe_chances(folder: Path, wrong_at_most: float = WRONG_AT_MOST) -> dict[str, Any]:
    """Return whether a model knows how likely answers by its codes are, and what that allows."""
    said = None
    if (folder / CHANCES).is_file():  # the fingerprint of an older file of weights is a hash of it
        said = read_chances(folder, _fingerprint_here(folder))
    content = {"known": False, "children": 0, "parents": 0}
    if said is None or said.chances is None:
        need = f"{LEAST_IMAGES} test images of {LEAST_KINDS} kinds"
        return content | {"why_not": f"phpq train fits them where there are at least {need}"}
    return content | {"known": True, "by": "model"} | told_shares(said.chances, wrong_at_most)


def _fingerprint_here(folder: Path) -> str:
    """Return the fingerprint of a folder's weights, or of its ONNX file where it has none."""
    from phpq.model.interface import ENCODER
    from phpq.model.onnx_file import read_facts

    if (folder / WEIGHTS).is_file():
        return stored_fingerprint(folder / WEIGHTS)
    return read_facts(folder / ENCODER).get(FINGERPRINT, "")


def copy_chances(source: Path | None, folder: Path, fingerprint: str) -> None:
    """Give a folder the chances of weights from another; what belongs to others goes nowhere."""
    said = None
    with suppress(FormatError):
        said = source and read_chances(source, fingerprint)
    if said:
        write_chances(folder, said, fingerprint)
    else:
        (folder / CHANCES).unlink(missing_ok=True)
