"""Tables of images: CSV, TSV, Parquet, Lance or a plain list in, rows or a `Dataset` out.

A data set has one row per image: `path` (relative to the table's folder), `label`, and optionally
`split` (train or test) and `id`. Without `split` a fifth of each class becomes the test split. A
column of image bytes is not read here: its cells become origins (`places.TableCell`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.data.decode import FileReader
from phpq.data.folder import natural_key
from phpq.data.images import Dataset, LabelledImages, named, split_by_hash, split_by_mask
from phpq.data.places import Place, TableCell, is_uri, open_place, parquet_file, suffix_of
from phpq.errors import DataError, FormatError, PhpqError

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_EXTENSIONS = (*DELIMITERS, ".parquet")
FIXED = ("path", "uri", "image", "id", "label")  # the columns that are not metadata
SPLITS = {"train": False, "test": True, "val": True, "valid": True, "validation": True}
# 007 is a text, since a number would lose its zeros.
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BLOCK = 1024  # rows of a Parquet file or a Lance dataset held at once


def open_table(path: Path, *, seed: int = 0) -> Dataset:
    """Open a `.csv`, `.tsv` or `.parquet` file as a data set of its name.

    Ids are the column `id`, or else the column `path`; the seed draws a missing split.
    """
    columns = _read_columns(path)
    for name, values in columns.items():
        blank = [str(row) for row, value in enumerate(values, start=1) if not value]
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


def is_table(place: Place) -> bool:
    """Return whether a place is a table by its name, or a Lance dataset."""
    suffix = suffix_of(place)
    if isinstance(place, Path) and place.is_dir():
        return suffix == ".lance" and (place / "_versions").is_dir()
    return suffix in (*TABLE_EXTENSIONS, ".lance", ".txt")


def table_rows(place: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; a `FormatError` if it is not what its name says.

    It is a .csv, .tsv or .parquet file, a Lance dataset, or a .txt file with one path or URI per
    line. A CSV without a header whose first field is a URI is such a list too.
    """
    if suffix_of(place) in (".parquet", ".lance"):
        yield from _arrow_rows(place)
    elif _is_bare_list(place):
        yield from ({"path": line} for line in _bare_lines(place))
    else:
        yield from _typed_lines(place)


def count_rows(place: Place) -> int | None:
    """Count the rows of a table without opening an image; None if it cannot be known."""
    suffix = suffix_of(place)
    if isinstance(place, Path) and not place.exists():
        return None
    if suffix == ".parquet":
        with _valid(place):
            return int(parquet_file(place).metadata.num_rows)
    if suffix == ".lance":
        return int(_lance_dataset(place).count_rows())
    return sum(1 for _ in (_bare_lines(place) if _is_bare_list(place) else _lines(place)))


def _read_columns(path: Path) -> dict[str, list[str]]:
    """Read the columns of a data set as text."""
    kind = path.suffix.lower()
    if kind not in TABLE_EXTENSIONS:
        raise DataError(f"{str(path)!r} must end in one of {', '.join(TABLE_EXTENSIONS)}.")
    if not path.is_file():
        raise DataError(f"There is no table {str(path)!r}.")
    rows = _lines(path) if kind in DELIMITERS else _arrow_rows(path)
    columns: dict[str, list[str]] = {}
    seen: list[str] = []
    for row in rows:
        seen = seen or list(row)
        for name, value in row.items():
            if name.lower() in ("path", "label", "split", "id"):
                text = "" if value is None else str(value).strip()
                columns.setdefault(name.lower(), []).append(text)
    if not seen:
        raise DataError(f"{str(path)!r} has no rows. Give it one row per image.")
    for name in ("path", "label"):
        if name not in columns:
            raise DataError(
                f"{str(path)!r} has no column {name!r}. Seen: {', '.join(seen)}. "
                "Needed: path, label; optional: split, id."
            )
    return columns


def _parse_splits(path: Path, values: list[str]) -> NDArray[np.bool_]:
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


def _typed_lines(place: Place) -> Iterator[dict[str, Any]]:
    """Read a CSV or TSV file twice: for the type of each column, then for its rows."""
    kinds: dict[str, type] = {}
    for row in _lines(place):
        for name, text in row.items():
            if text and name not in FIXED:
                kinds[name] = _widest(kinds.get(name, int), text)
    for row in _lines(place):
        yield {
            name: text if name in FIXED else kinds[name](text) if text else None
            for name, text in row.items()
        }


def _lines(place: Place) -> Iterator[dict[str, str]]:
    # Not Arrow's reader: it takes stray quotes for text, and 007 for a number.
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would become part of a name.
        with io.TextIOWrapper(open_place(place), encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream, delimiter=DELIMITERS[suffix_of(place)], strict=True)
            header = [_column_name(name.strip()) for name in next(lines, [])]
            for number, line in enumerate(filter(None, lines), start=1):
                if len(line) != len(header):
                    raise FormatError(
                        f"Row {number} of {str(place)!r} has {len(line)} fields, the header "
                        f"{len(header)}: {line!r}. Quote a field that holds the delimiter."
                    )
                yield {name: text.strip() for name, text in zip(header, line, strict=True)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise FormatError(f"{str(place)!r} is not a valid table in UTF-8: {error}.") from error


def _is_bare_list(place: Place) -> bool:
    return suffix_of(place) == ".txt" or is_uri(next(_bare_lines(place), ""))


def _bare_lines(place: Place) -> Iterator[str]:
    """Yield the lines of a list, without blank lines and comments (#)."""
    try:
        with io.TextIOWrapper(open_place(place), encoding="utf-8-sig") as stream:
            for line in stream:
                text = line.strip()
                if text and not text.startswith("#"):
                    yield text
    except UnicodeDecodeError as error:
        raise FormatError(f"{str(place)!r} is not a list in UTF-8: {error}.") from error


def _widest(kind: type, text: str) -> type:
    """Return int, float or str: the narrowest of them that holds `text` and what came before."""
    if kind is int and _INTEGER.fullmatch(text):
        return int
    return float if kind is not str and _NUMBER.fullmatch(text) else str


def _arrow_rows(place: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file or a Lance dataset; image bytes become `TableCell`s."""
    table = str(place.absolute()) if isinstance(place, Path) else place
    with _valid(place):
        if suffix_of(place) == ".lance":
            source = _lance_dataset(place)
            schema, version = source.schema, source.version
        else:
            source = parquet_file(place)
            schema, version = source.schema_arrow, None
        cells = _image_column(schema)
        columns = [name for name in schema.names if name != cells]
        for number, row in enumerate(chain.from_iterable(_blocks(source, columns))):
            named_row = {_column_name(name): value for name, value in row.items()}
            if cells:
                named_row["image"] = TableCell(table, number, cells, version)
            yield named_row


def _blocks(source: Any, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    if hasattr(source, "take"):  # a Lance dataset, read by position, as its cells are
        count = source.count_rows()
        for start in range(0, count, _BLOCK):
            rows = list(range(start, min(start + _BLOCK, count)))
            taken = source.take(rows, columns=columns) if columns else None
            yield taken.to_pylist() if taken else [{} for _ in rows]
        return
    for batch in source.iter_batches(batch_size=_BLOCK, columns=columns or None):
        yield batch.select(columns).to_pylist() if columns else [{}] * batch.num_rows


def _column_name(name: str) -> str:
    """Return a column's name, in lower case if it is a fixed one."""
    return name.lower() if name.lower() in FIXED else name


def _image_column(schema: Any) -> str | None:
    """Return the column `image` if it holds bytes, alone or in a struct as in Hugging Face sets."""
    import pyarrow as pa

    for field in schema:
        if field.name.lower() == "image":
            kind = field.type
            inside = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
            if inside or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                return str(field.name)
    return None


def _lance_dataset(place: Place) -> Any:
    import lance

    with _valid(place):
        return lance.dataset(str(place))


@contextmanager
def _valid(place: Place) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, PhpqError):
            raise
        kind = "Lance dataset" if suffix_of(place) == ".lance" else "Parquet file"
        raise FormatError(f"{str(place)!r} is not a valid {kind}: {error}.") from error
