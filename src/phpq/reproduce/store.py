"""The folder of a grid: one JSON a cell, written whole or not at all.

cells/<key>.json    what was measured          cells/<key>.npz   codes, for figures
features/<key>.npz  features of both splits    logs/<key>.log    why a cell failed
features/<key>.safetensors  a fine-tuned backbone that methods start from
grid.json           data set, cost             pixels/           decoded images
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.errors import ConfigError, FormatError
from phpq.files import read_json, write_bytes, write_json, write_text
from phpq.reproduce.grid import Cell, same_settings

DONE, FAILED = "done", "failed"
FORMAT = 1  # of a record; one of another format is run again
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Store:
    """Reads and writes the files of a grid.

    Attributes:
        folder: Made by `prepare`.
    """

    folder: Path

    def prepare(self) -> None:
        """Make the folders."""
        try:
            for name in ("cells", "features", "logs"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"Cannot make the folder {str(self.folder)!r}: {error.strerror}. "
                "Give another (--out DIR)."
            ) from error

    @property
    def pixels(self) -> Path:
        """Where decoded images are kept unless another place is named."""
        return self.folder / "pixels"

    def record_path(self, key: str) -> Path:
        """Return the place of a cell's figures."""
        return self.folder / "cells" / f"{key}.json"

    def arrays_path(self, cell: Cell) -> Path:
        """Return the place of a cell's arrays: features, or codes and queries."""
        kind = "features" if cell.kind == "features" else "cells"
        return self.folder / kind / f"{cell.key}.npz"

    def backbone_path(self, key: str) -> Path:
        """Return the place of the weights of a backbone that methods share."""
        return self.folder / "features" / f"{key}.safetensors"

    def log_path(self, key: str) -> Path:
        """Return the place of a failed cell's traceback."""
        return self.folder / "logs" / f"{key}.log"

    def write_record(self, record: dict[str, Any]) -> None:
        """Write a cell's figures."""
        write_json(self.record_path(record["key"]), record)

    def write_log(self, key: str, text: str) -> None:
        """Write why a cell failed."""
        write_text(self.log_path(key), text)

    def write_arrays(self, cell: Cell, arrays: Arrays) -> None:
        """Write a cell's arrays, compressed."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_bytes(self.arrays_path(cell), buffer.getvalue())

    def read_arrays(self, cell: Cell) -> Arrays:
        """Read a cell's arrays.

        Raises:
            FormatError: If they are missing or damaged.
        """
        path = self.arrays_path(cell)
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError) as error:
            raise FormatError(
                f"Cannot read {str(path)!r}: {error}. Remove cells/{cell.key}.json and run the "
                "command again: it is made anew."
            ) from error

    def finished(
        self, cell: Cell, weights: str, *, with_arrays: bool = True
    ) -> dict[str, Any] | None:
        """Return the record of a cell that is done with these very settings, or None.

        Args:
            cell: As planned.
            weights: Of the plan, by content.
            with_arrays: What it should have stored beside the record must be there.
        """
        record = self.read(cell.key)
        if record is None or record["status"] != DONE or record["format"] != FORMAT:
            return None
        if not same_settings(record["config"], cell, weights):
            return None
        if not with_arrays:
            return record
        if cell.kind == "backbone" and not self.backbone_path(cell.key).is_file():
            return None
        needs_arrays = cell.keep or cell.kind == "features"
        return None if needs_arrays and not self.arrays_path(cell).is_file() else record

    def read(self, key: str) -> dict[str, Any] | None:
        """Return a cell's record, whatever became of it; None if there is none."""
        path = self.record_path(key)
        if not path.is_file():
            return None
        remedy = "Remove it: the cell is run again."
        record = read_json(path, remedy=remedy)
        missing = {"format", "key", "status", "config"} - set(record)
        if missing:
            raise FormatError(f"{str(path)!r} is damaged: it lacks {sorted(missing)}. {remedy}")
        return record

    def read_manifest(self) -> dict[str, Any]:
        """Return `grid.json`; empty where there is none."""
        path = self.folder / "grid.json"
        return read_json(path, remedy="Remove it.") if path.is_file() else {}

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write `grid.json`."""
        write_json(self.folder / "grid.json", json.loads(json.dumps(content)))
