"""A run's files: what is needed to use the model, to resume, and to see how it went.

    config.json          the resolved config, the classes, the data set, the version
    weights.safetensors  the model as of the last checkpoint (averaged weights)
    state.safetensors    what resuming needs; gone once the run is finished
    metrics.jsonl        one row per epoch

Every file is replaced atomically: a kill at any moment leaves the last checkpoint readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phpq.errors import FormatError
from phpq.files import write_text
from phpq.model.method import Method
from phpq.model.weights import read_safetensors, write_safetensors

STATE = "state.safetensors"
METRICS = "metrics.jsonl"


class RunState:
    """Saves and restores everything that a training step depends on."""

    def __init__(self, network: Method, averaged: Method, optimizer: torch.optim.Optimizer) -> None:
        self.network = network
        self.averaged = averaged
        self.optimizer = optimizer

    def save(self, folder: Path, epoch: int) -> None:
        """Write the state after `epoch` finished epochs."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        tensors |= {f"memory.{k}": v for k, v in self.network.memory().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            for name, value in entry.items():
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        write_safetensors(folder / STATE, tensors, {"epoch": str(epoch)})

    def load(self, folder: Path) -> int:
        """Restore the last saved state; returns the number of finished epochs."""
        path = folder / STATE
        tensors, metadata = read_safetensors(path)
        kinds = ("network", "averaged", "memory", "optimizer")
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            parts.setdefault(part, {})[name] = value
        try:
            self.network.load_state_dict(parts["network"])
            self.averaged.load_state_dict(parts["averaged"])
            for name, target in self.network.memory().items():
                target.copy_(parts["memory"][name])
            self._load_optimizer(parts["optimizer"])
            return int(metadata["epoch"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise FormatError(
                f"{str(path)!r} does not fit this run ({str(error).splitlines()[0]}). "
                "Resume with the config it was made with, or start in a new folder."
            ) from error

    def _load_optimizer(self, entries: dict[str, Tensor]) -> None:
        # Not load_state_dict: it would replace the rate tensors that a captured graph reads.
        content = self.optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in entries.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        content["state"] = state
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(content)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def write_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON row per epoch."""
    write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))


def read_metrics(folder: Path, *, epochs: int) -> list[dict[str, Any]]:
    """Read the rows of the first `epochs` epochs; what a killed run wrote beyond is dropped."""
    path = folder / METRICS
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break  # a torn line ends what can be trusted
    return [row for row in rows if row["epoch"] <= epochs]
