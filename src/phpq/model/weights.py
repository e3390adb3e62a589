"""Files of named tensors: safetensors, and torch's own format without pickled code.

Files are replaced atomically. Values that are not finite are neither read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from phpq.errors import FormatError
from phpq.files import replacing


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a weights file, on the CPU."""
    if not path.is_file():
        raise FormatError(
            f"There is no weights file {str(path)!r}. Give the path of a .safetensors or .pth file."
        )
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        raise FormatError(
            f"{str(path)!r} cannot be read as a file of weights ({type(error).__name__}). "
            "Give a .safetensors file, or a .pth file that holds tensors only."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise FormatError(f"{str(path)!r} does not hold a dictionary of tensors.")
    _check_finite(content, path)
    return content


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged or not a safetensors file: {error}. "
            "Restore it from a copy, or train again."
        ) from error
    _check_finite(tensors, path)
    return tensors, metadata


def load_matching(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load the tensors of the file `path` into a module that the config beside it describes."""
    found, wanted = (
        {(key, value.shape) for key, value in state.items()}
        for state in (tensors, module.state_dict())
    )
    if differing := sorted({key for key, _ in found ^ wanted}):
        raise FormatError(
            f"{str(path)!r} does not fit the config beside it: {len(differing)} tensors differ "
            f"(first: {differing[0]}). The two files come from different runs; restore the pair."
        )
    module.load_state_dict(tensors)


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to `path` in one atomic step."""
    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    if fault := first_not_finite(plain):
        raise FormatError(
            f"{str(path)!r} was not written: {fault}. Train again with a lower "
            "training.learning_rate or with training.precision=float32."
        )
    with replacing(path) as temporary:
        save_file(plain, temporary, dict(metadata))


def first_not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Name the first tensor that holds an infinity or NaN; empty if all are finite."""
    floating = {key: value for key, value in tensors.items() if value.is_floating_point()}
    if not floating:
        return ""
    good = torch.stack([value.isfinite().all() for value in floating.values()])  # one sync point
    if good.all():
        return ""
    key = list(floating)[int(good.int().argmin())]
    value = floating[key]
    count = int((~value.isfinite()).sum())
    return f"{key!r} has {count} values of {value.numel()} that are not finite"


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    if fault := first_not_finite(tensors):
        raise FormatError(
            f"{str(path)!r} cannot be used: {fault}. Restore it from a copy, or give another file "
            "of weights."
        )
