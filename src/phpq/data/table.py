"""A CSV, TSV or Parquet file with a row an image in, a `Dataset` out.

Columns: `path` (relative to the file's folder), `label`, and optionally `split` (train or test) and
`id`. Without `split` a fifth of each class becomes the test split.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from phpq.data.decode import FileReader
from phpq.data.folder import natural_key
from phpq.data.images import Dataset, LabelledImages, split_by_hash, split_by_mask
from phpq.data.split import named
from phpq.errors import DataError, FormatError

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_EXTENSIONS = (*DELIMITERS, ".parquet")
REQUIRED = ("path", "label")
SPLITS = {"train": False, "test": True, "val": True, "valid": True, "validation": True}


def open_table(path: Path, *, seed: int = 0) -> Dataset:
    """Open a table of images.

    Args:
        path: A `.csv`, `.tsv` or `.parquet` file; its name becomes the name of the data set.
        seed: Decides the split where the table has none.

    Returns:
        A data set whose ids are the column `id`, or else the column `path`.

    Raises:
        DataError: If a column, a value or a file is missing, a split is unknown, or an id repeats.
        FormatError: If the file cannot be read as what its name says.
    """
    columns = _read_columns(path)
    for name in REQUIRED:
        if name not in columns:
            raise DataError(
                f"{str(path)!r} has no column {name!r}. Seen: {', '.join(columns) or 'none'}. "
                "Needed: path, label; optional: split, id."
            )
    if not columns["path"]:
        raise DataError(f"{str(path)!r} has no rows. Give it a row an image.")
    for name in (*REQUIRED, *(optional for optional in ("split", "id") if optional in columns)):
        blank = [str(row) for row, value in enumerate(columns[name], start=1) if not value]
        if blank:
            raise DataError(f"{str(path)!r} has no {name} in {named(blank, 'row')}.")
    files = tuple(columns["path"])
    missing = [file for file in files if not (path.parent / file).is_file()]
    if missing:
        raise DataError(
            f"{str(path)!r} names {named(missing, 'file')} that do not exist. Paths are relative "
            f"to {str(path.parent)!r}."
        )
    class_names = tuple(sorted(set(columns["label"]), key=natural_key))
    position = {name: index for index, name in enumerate(class_names)}
    labels = np.array([position[label] for label in columns["label"]], dtype=np.int64)
    ids = tuple(columns.get("id", [Path(file).as_posix() for file in files]))
    everything = LabelledImages(path.stem, ids, labels, class_names, FileReader(path.parent, files))
    if "split" not in columns:
        return split_by_hash(everything, seed=seed)
    return split_by_mask(everything, _parse_splits(path, columns["split"]))


def _parse_splits(path: Path, values: list[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names = [value.casefold() for value in values]
    unknown = sorted(set(names) - set(SPLITS))
    if unknown:
        raise DataError(
            f"{str(path)!r} has {named(unknown, 'unknown split')}. Known: {', '.join(SPLITS)}."
        )
    if "test" in names:  # validation images are queries only where there is no test split
        unused = [name for name in set(names) if SPLITS[name] and name != "test"]
        if unused:
            raise DataError(
                f"{str(path)!r} has both 'test' and {named(sorted(unused), 'split')}. "
                "Keep train and test, and leave out the other rows."
            )
    return np.array([SPLITS[name] for name in names], dtype=np.bool_)


def _read_columns(path: Path) -> dict[str, list[str]]:
    """Read the table as text, column by column, with column names in lower case."""
    kind = path.suffix.lower()
    if kind not in TABLE_EXTENSIONS:
        raise DataError(f"{str(path)!r} must end in one of {', '.join(TABLE_EXTENSIONS)}.")
    if not path.is_file():
        raise DataError(f"There is no table {str(path)!r}.")
    return _read_parquet(path) if kind == ".parquet" else _read_text(path, DELIMITERS[kind])


def _read_text(path: Path, delimiter: str) -> dict[str, list[str]]:
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would become part of a name.
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream, delimiter=delimiter, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise FormatError(f"{str(path)!r} is not a valid table in UTF-8: {error}.") from error
    if not rows:
        return {}
    header = [name.strip().lower() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise FormatError(
                f"Row {number} of {str(path)!r} has {len(row)} fields, the header {len(header)}: "
                f"{delimiter.join(row)!r}. Quote a field that holds {delimiter!r}."
            )
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, list[str]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # A file handle: a path would make pyarrow look for partitions in the folder names.
        with path.open("rb") as stream:
            table = parquet.read_table(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"{str(path)!r} is not a valid Parquet file: {error}.") from error
    wanted = [name for name in table.column_names if name.lower() in (*REQUIRED, "split", "id")]
    columns = {name.lower(): table.column(name).to_pylist() for name in wanted}
    if not set(REQUIRED) <= set(columns):
        return {name.lower(): [] for name in table.column_names}  # for the message
    return {
        name: ["" if value is None else str(value).strip() for value in values]
        for name, values in columns.items()
    }
