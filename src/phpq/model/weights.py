"""Files of named tensors: safetensors, and torch's own format without pickled code.

Reading names what is wrong with a damaged file; writing is atomic, so that a crash leaves the old
file or the new one, never a half.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

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
    return content


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged or not a safetensors file: {error}. "
            "Restore it from a copy, or train again."
        ) from error


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to `path` in one atomic step."""
    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    with replacing(path) as temporary:
        save_file(plain, temporary, dict(metadata))
