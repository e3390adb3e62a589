"""The folder of a grid: one file of records, and arrays beside it.

cells.jsonl         records, one line per cell; the last one of a key counts
cells/<key>.npz     codes, for figures         features/<key>.npz  features of both splits
logs/<key>.log      why a cell failed          features/<key>.safetensors  a shared backbone
grid.json           data set, cost             pixels/             decoded images

Version 0.1.0 wrote one `cells/<key>.json` per cell. Such files are read too, and moved into
`cells.jsonl` by the first command that runs cells.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm
from phpq.errors import FormatError
from phpq.files import make_folder, read_json, write_bytes, write_json, write_text
from phpq.reproduce.grid import SHARED, Cell, Kind, recorded_config, same_settings

DONE, FAILED = "done", "failed"
FORMAT = 1  # of a record; cells of another format are run again
Arrays = dict[str, NDArray[Any]]
Record = dict[str, Any]
_REQUIRED = {"format", "key", "status", "config"}
# Fields of `KeptCodes` that are int32 on disk and int64 in memory.
_PLACES = ("gallery_rows", "gallery_labels", "query_rows", "query_labels")


@dataclass(frozen=True, slots=True, eq=False)
class KeptCodes:
    """Codes and queries of a method with the first seed, for searches without torch."""

    codebooks: Codebooks  # rounded to float16 once
    codes: CodeArray  # (N, M) of the gallery; learned from labels where the method does so
    gallery_rows: IntArray  # (N,) positions in the training split
    gallery_labels: IntArray  # (N,)
    queries: FloatArray  # (Q, D) float32, some of the test images
    query_rows: IntArray  # (Q,) their positions in the test split
    query_labels: IntArray  # (Q,)
    query_norm: QueryNorm

    @property
    def binary(self) -> bool:
        """Whether the codes are signs, to be compared by Hamming distance."""
        words = self.codebooks.codewords
        return not self.codebooks.unit and bool((np.abs(words) == 1).all())


@dataclass(frozen=True, slots=True)
class Store:
    """The files of a grid. One process at a time writes, after it has called `prepare`."""

    folder: Path

    def prepare(self) -> None:
        """Make the folders, move records of version 0.1.0 into one file, repair its last line."""
        make_folder(self.folder, within=("cells", "features", "logs"))
        path, old = self.records_path, self._old_records()
        if old or (path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")):
            write_text(path, "".join(map(_line, self.read_records().values())))
        for one in old:
            one.unlink()

    @property
    def records_path(self) -> Path:
        """The file of all records."""
        return self.folder / "cells.jsonl"

    def arrays_path(self, key: str, kind: Kind) -> Path:
        """Return the file that a cell leaves for others: arrays, or a backbone's weights."""
        folder = "features" if kind in SHARED else "cells"
        return self.folder / folder / f"{key}.{'safetensors' if kind == 'backbone' else 'npz'}"

    def read_records(self) -> dict[str, Record]:
        """Return the records of all cells by key, finished or failed.

        An incomplete last line, left by a killed process, is ignored.
        """
        path, texts = self.records_path, {repr(str(o)): o.read_bytes() for o in self._old_records()}
        *lines, half = (path.read_bytes() if path.is_file() else b"").split(b"\n")
        with suppress(ValueError):
            json.loads(half)
            lines.append(half)  # complete but for the newline
        texts |= {f"Line {n} of {str(path)!r}": line for n, line in enumerate(lines, 1) if line}
        records: dict[str, Record] = {}
        for where, text in texts.items():
            try:
                record = json.loads(text)
                if missing := _REQUIRED - set(record):
                    raise ValueError(f"it lacks {sorted(missing)}")
            except (ValueError, TypeError) as error:
                raise FormatError(
                    f"{where} is damaged: {error}. Remove it: the cell is run again."
                ) from error
            records[record["key"]] = record
        return records

    def finished(
        self, cells: Iterable[Cell], weights: str, *, with_arrays: bool
    ) -> dict[str, Record]:
        """Return the records of the cells that are done with the same settings, by key.

        Weights are named by content. `with_arrays` requires the stored arrays of a cell, too.
        """
        records = self.read_records()

        def is_done(cell: Cell) -> bool:
            record = records.get(cell.key, {})
            if (record.get("status"), record.get("format")) != (DONE, FORMAT):
                return False
            stores = with_arrays and (cell.keep or cell.kind in SHARED)
            if stores and not self.arrays_path(cell.key, cell.kind).is_file():
                return False
            return same_settings(record["config"], cell, weights)

        return {cell.key: records[cell.key] for cell in cells if is_done(cell)}

    def write_record(self, record: Record) -> None:
        """Append a cell's record; it replaces an earlier one of the same key."""
        with self.records_path.open("ab") as file:
            file.write(_line(record).encode())
            file.flush()
            os.fsync(file.fileno())

    def _old_records(self) -> list[Path]:
        return sorted((self.folder / "cells").glob("*.json"))

    def write_arrays(self, cell: Cell, arrays: Arrays) -> None:
        """Write a cell's arrays, compressed."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_bytes(self.arrays_path(cell.key, cell.kind), buffer.getvalue())

    def read_arrays(self, key: str, kind: Kind) -> Arrays:
        """Read what `write_arrays` wrote; a `FormatError` names what is missing or damaged."""
        path = self.arrays_path(key, kind)
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError) as error:
            raise FormatError(
                f"Cannot read {str(path)!r}: {error}. Remove it and run the command again: "
                "it is made anew."
            ) from error

    def write_codes(self, cell: Cell, kept: KeptCodes) -> None:
        """Write a cell's codes and queries, in float16."""
        arrays = {name: getattr(kept, name).astype(np.int32) for name in _PLACES} | {
            "gallery_codes": kept.codes,
            "codebooks": kept.codebooks.codewords.astype(np.float16),
            "unit": np.array(kept.codebooks.unit),
            "query_norm": np.array(kept.query_norm),
            "queries": kept.queries.astype(np.float16),
        }
        self.write_arrays(cell, arrays)

    def read_codes(self, key: str) -> KeptCodes | None:
        """Read the codes of a cell; None if there are none."""
        if not self.arrays_path(key, "training").is_file():
            return None
        arrays = self.read_arrays(key, "training")
        return KeptCodes(
            codebooks=Codebooks(arrays["codebooks"].astype(np.float32), unit=bool(arrays["unit"])),
            codes=arrays["gallery_codes"],
            queries=arrays["queries"].astype(np.float32),
            query_norm="unit" if str(arrays["query_norm"]) == "unit" else "raw",
            **{name: arrays[name].astype(np.int64) for name in _PLACES},
        )

    def read_manifest(self) -> dict[str, Any]:
        """Return `grid.json`; empty where there is none."""
        path = self.folder / "grid.json"
        return read_json(path, remedy="Remove it.") if path.is_file() else {}

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write `grid.json`."""
        write_json(self.folder / "grid.json", content)


def record_head(cell: Cell, status: str, weights: str) -> Record:
    """Return the fields that every record of a cell has, done or failed."""
    return {
        "format": FORMAT,
        "key": cell.key,
        "status": status,
        "kind": cell.kind,
        "method": cell.config.method.name,
        "bits": cell.bits,
        "seed": cell.seed,
        "config": recorded_config(cell.config, weights),
    }


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
