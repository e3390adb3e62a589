"""Tables of images: CSV, TSV, Parquet, Lance or a plain list in, a mapping a row out.

Rows are yielded one at a time. A column of image bytes is not read here: its cells are origins.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phpq.data.table import DELIMITERS, TABLE_EXTENSIONS
from phpq.errors import FormatError, PhpqError
from phpq.gallery.origins import TableCell, parquet_file
from phpq.gallery.places import Place, is_uri, open_place, suffix_of

FIXED = ("path", "uri", "image", "id", "label")  # the columns that are not metadata
KINDS = (*TABLE_EXTENSIONS, ".lance", ".txt")
# 007 is a name, not a number: it would not come back as it was written.
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BLOCK = 1024  # rows of a Parquet file or a Lance dataset held at once


def is_table(place: Place) -> bool:
    """Say whether a place is a table by its name, or a Lance dataset."""
    suffix = suffix_of(place)
    if isinstance(place, Path) and place.is_dir():
        return suffix == ".lance" and (place / "_versions").is_dir()
    return suffix in KINDS


def table_rows(place: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table.

    Args:
        place: A .csv, .tsv or .parquet file, a Lance dataset, or a .txt file with a path or a URI a
            line. A CSV without a header whose first field is a URI is such a list too.

    Raises:
        FormatError: If it is not what its name says.
    """
    suffix = suffix_of(place)
    if suffix == ".parquet":
        yield from _parquet_rows(place)
    elif suffix == ".lance":
        yield from _lance_rows(place)
    elif suffix == ".txt" or _is_bare_list(place):
        yield from ({"path": line} for line in _bare_lines(place))
    else:
        yield from _text_rows(place)


def count_rows(place: Place) -> int | None:
    """Count the rows of a table without opening an image; None if it cannot be known."""
    suffix = suffix_of(place)
    if isinstance(place, Path) and not place.exists():
        return None
    if suffix == ".parquet":
        with _valid(place, "Parquet file"):
            return int(parquet_file(place).metadata.num_rows)
    if suffix == ".lance":
        return int(_lance_dataset(place).count_rows())
    if suffix == ".txt" or _is_bare_list(place):
        return sum(1 for _ in _bare_lines(place))
    return sum(1 for _ in _lines(place))


def _text_rows(place: Place) -> Iterator[dict[str, Any]]:
    """Read a CSV or TSV file twice: for the type of each column, then for its rows."""
    kinds: dict[str, type] = {}
    for row in _lines(place):
        for name, text in row.items():
            if text and name.lower() not in FIXED:
                kinds[name] = _widest(kinds.get(name, int), text)
    for row in _lines(place):
        yield {
            name: text if name.lower() in FIXED else kinds[name](text) if text else None
            for name, text in row.items()
        }


def _lines(place: Place) -> Iterator[dict[str, str]]:
    try:
        with io.TextIOWrapper(open_place(place), encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream, delimiter=DELIMITERS[suffix_of(place)], strict=True)
            header = _fixed_lower([name.strip() for name in next(lines, [])])
            for line in filter(None, lines):
                if len(line) != len(header):
                    raise FormatError(
                        f"Line {lines.line_num} of {str(place)!r} has {len(line)} fields, the "
                        f"header {len(header)}. Quote a field that holds the delimiter."
                    )
                yield {name: text.strip() for name, text in zip(header, line, strict=True)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise FormatError(f"{str(place)!r} is not a valid table in UTF-8: {error}.") from error


def _is_bare_list(place: Place) -> bool:
    return suffix_of(place) in DELIMITERS and is_uri(next(_bare_lines(place), ""))


def _bare_lines(place: Place) -> Iterator[str]:
    """Yield what is on the lines of a list; blank ones and remarks (#) are left out."""
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


def _parquet_rows(place: Place) -> Iterator[dict[str, Any]]:
    table = str(place.absolute()) if isinstance(place, Path) else place
    with _valid(place, "Parquet file"):
        file = parquet_file(place)
        cells = _image_column(file.schema_arrow)
        columns = [name for name in file.schema_arrow.names if name != cells]
        start = 0
        for batch in file.iter_batches(batch_size=_BLOCK, columns=columns or None):
            rows = batch.select(columns).to_pylist() if columns else [{}] * batch.num_rows
            for place_in_batch, row in enumerate(rows):
                cell = TableCell(table, start + place_in_batch, cells) if cells else None
                yield _named(row, cell)
            start += batch.num_rows


def _lance_rows(place: Place) -> Iterator[dict[str, Any]]:
    dataset = _lance_dataset(place)
    cells = _image_column(dataset.schema)
    columns = [name for name in dataset.schema.names if name != cells]
    table = str(place.absolute()) if isinstance(place, Path) else place
    with _valid(place, "Lance dataset"):
        for start in range(0, dataset.count_rows(), _BLOCK):
            stop = min(start + _BLOCK, dataset.count_rows())
            block = dataset.take(list(range(start, stop)), columns=columns) if columns else None
            rows = block.to_pylist() if block is not None else [{}] * (stop - start)
            for number, row in enumerate(rows, start=start):
                cell = TableCell(table, number, cells, dataset.version) if cells else None
                yield _named(row, cell)


def _named(row: dict[str, Any], cell: TableCell | None) -> dict[str, Any]:
    """Return a row with the fixed names in lower case, and its cell as `image`."""
    named = dict(zip(_fixed_lower(list(row)), row.values(), strict=True))
    return named if cell is None else {**named, "image": cell}


def _fixed_lower(names: list[str]) -> list[str]:
    return [name.lower() if name.lower() in FIXED else name for name in names]


def _image_column(schema: Any) -> str | None:
    """Return the column `image` if it holds bytes, alone or in a struct as in Hugging Face sets."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    for name in schema.names:
        kind = schema.field(name).type
        inside = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if name.lower() == "image" and (is_bytes(kind) or inside):
            return str(name)
    return None


def _lance_dataset(place: Place) -> Any:
    import lance

    with _valid(place, "Lance dataset"):
        return lance.dataset(str(place))


@contextmanager
def _valid(place: Place, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, PhpqError):
            raise
        raise FormatError(f"{str(place)!r} is not a valid {kind}: {error}.") from error
