"""What can be put into a gallery: a folder, a table, files, rows or a data set in, items out.

Items are yielded one at a time: a folder of a million images takes no more memory than one of ten.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from phpq.data import Dataset, LabelledImages, open_dataset
from phpq.data.decode import IMAGE_EXTENSIONS
from phpq.data.folder import TEST_FOLDERS, natural_key
from phpq.data.table import DELIMITERS, TABLE_EXTENSIONS
from phpq.errors import DataError, FormatError
from phpq.gallery.records import column_name

Source = str | Path | Dataset | LabelledImages | Iterable[str | Path | Mapping[str, Any]]
_PREFIXES = ("plumage", "cub200", "dogs120", "folder:", "table:")
# 007 is a name, not a number: it would not come back as it was written.
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BLOCK = 1024  # rows of a Parquet file held at once


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One image that is to be put into a gallery.

    Attributes:
        id: Its name in the gallery.
        image: Its file, or an opened image.
        label: Its class, if it has one.
        metadata: With clean column names.
    """

    id: str
    image: Path | Image.Image
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str | None:
        """Where its file is."""
        return str(self.image.absolute()) if isinstance(self.image, Path) else None


def read_items(source: Source, *, home: Path | None = None) -> Iterator[Item]:
    """Yield the images of a source.

    Args:
        source: A folder (ids are paths relative to it, labels the names of its sub-folders); a
            .csv, .tsv or .parquet file with a column `path` and optionally `id` and `label`, all
            others are metadata; one image file; what `open_dataset` takes by name; a data set;
            paths; or mappings with `path` or `image`, `id`, `label` and metadata.
        home: Where downloads are kept.

    Raises:
        DataError: If there is nothing to be read.
    """
    if isinstance(source, Dataset):
        yield from _labelled(source.train)
        yield from _labelled(source.test)
    elif isinstance(source, LabelledImages):
        yield from _labelled(source)
    elif isinstance(source, str | Path):
        yield from _named(source, home)
    else:
        for entry in source:
            yield _entry(entry)


def first_item(source: Source) -> Item:
    """Return the first image of a source that can be read twice; raises as `read_items` does."""
    item = next(read_items(source), None)
    if item is None:
        raise DataError(f"There are no images in {str(source)!r}. Give at least one.")
    return item


def count_items(source: Source) -> int | None:
    """Count what a source will yield without opening an image; None if it cannot be known."""
    if isinstance(source, Dataset):
        return len(source.train) + len(source.test)
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if path.is_dir():
            return sum(1 for _ in _walk(path))
        return _table_rows(path) if path.suffix.lower() in TABLE_EXTENSIONS else None
    return len(source) if isinstance(source, Sequence | LabelledImages) else None


def _named(source: str | Path, home: Path | None) -> Iterator[Item]:
    path = Path(source).expanduser()
    if isinstance(source, str) and source.startswith(_PREFIXES) and not path.exists():
        yield from read_items(open_dataset(source, home=home))
    elif path.is_dir():
        yield from _folder(path)
    elif not path.exists():
        raise DataError(
            f"There is no file or folder {str(source)!r}. Give a folder of images, a CSV, TSV or "
            "Parquet table with a column `path`, an image, or cub200, dogs120 or plumage."
        )
    elif path.suffix.lower() in TABLE_EXTENSIONS:
        yield from _table(path)
    else:
        yield Item(Path(source).as_posix(), path)


def _labelled(images: LabelledImages) -> Iterator[Item]:
    for row, name in enumerate(images.ids):
        label = images.class_names[int(images.labels[row])]
        yield Item(name, images.path(row) or images.read(row), label)


def _folder(root: Path) -> Iterator[Item]:
    children = {child.name.casefold() for child in root.iterdir() if child.is_dir()}
    split = "train" in children and bool(children & set(TEST_FOLDERS))
    splits = {"train", *TEST_FOLDERS} if split else set()
    empty = True
    for file in _walk(root):
        empty = False
        folders = file.relative_to(root).parts[:-1]
        if folders and folders[0].casefold() in splits:
            folders = folders[1:]
        label = folders[0] if folders else None
        yield Item(file.relative_to(root).as_posix(), file, label)
    if empty:
        known = " ".join(sorted(IMAGE_EXTENSIONS))
        raise DataError(f"No images in {str(root)!r} or below. Known types: {known}.")


def _walk(root: Path) -> Iterator[Path]:
    """Yield image files, a folder at a time, in natural order; hidden ones are left out."""
    seen: set[tuple[int, int]] = set()
    for parent, folders, files in os.walk(root, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        hidden = (".", "__MACOSX")
        # A gallery inside the folder that is indexed holds no images of its own.
        folders[:] = sorted(
            (f for f in folders if not f.startswith(hidden) and not f.endswith(".lance")),
            key=natural_key,
        )
        for name in sorted(files, key=natural_key):
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_EXTENSIONS:
                yield Path(parent) / name


def _table(path: Path) -> Iterator[Item]:
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _text_rows(path)
    for number, row in enumerate(rows, start=1):
        if not row.get("path"):
            seen = ", ".join(row) or "none"
            raise DataError(
                f"{str(path)!r} has no path in row {number}. Its columns: {seen}. Needed: path; "
                "optional: id, label; all others are metadata."
            )
        item = _entry(row)
        file = path.parent / str(row["path"])
        yield replace(item, image=file, id=item.id if row.get("id") else _posix(row["path"]))


def _entry(entry: str | Path | Mapping[str, Any]) -> Item:
    """Make an item of a path or a mapping."""
    if isinstance(entry, str | Path):
        return Item(_posix(entry), Path(entry).expanduser())
    if not isinstance(entry, Mapping):
        raise DataError(
            f"{entry!r} is not an image to add. Give paths, or mappings with the keys path (or "
            "image), id, label and metadata."
        )
    values = {name.strip(): value for name, value in entry.items()}
    fixed = {name.lower(): values.pop(name) for name in list(values) if name.lower() in _FIXED}
    image = fixed.get("image")
    if image is None and fixed.get("path"):
        image = Path(str(fixed["path"])).expanduser()
    name = fixed.get("id") or fixed.get("path")
    if not isinstance(image, Path | Image.Image) or not name:
        raise DataError(
            f"A row has the keys {', '.join(entry)}; it needs path, or image (a PIL image) and id."
        )
    label = fixed.get("label")
    metadata = {column_name(key): value for key, value in values.items()}
    return Item(_posix(name), image, None if label in (None, "") else str(label), metadata)


_FIXED = ("path", "image", "id", "label")


def _posix(name: object) -> str:
    return name.as_posix() if isinstance(name, Path) else str(name)


def _text_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read a CSV or TSV file twice: for the type of each column, then for its rows."""
    kinds: dict[str, type] = {}
    for row in _lines(path):
        for name, text in row.items():
            if text and name.lower() not in _FIXED:
                kinds[name] = _widest(kinds.get(name, int), text)
    for row in _lines(path):
        yield {
            name: text if name.lower() in _FIXED else kinds[name](text) if text else None
            for name, text in row.items()
        }


def _lines(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream, delimiter=DELIMITERS[path.suffix.lower()], strict=True)
            header = [name.strip() for name in next(lines, [])]
            header = [name.lower() if name.lower() in _FIXED else name for name in header]
            for line in filter(None, lines):
                if len(line) != len(header):
                    raise FormatError(
                        f"Line {lines.line_num} of {str(path)!r} has {len(line)} fields, the "
                        f"header {len(header)}. Quote a field that holds the delimiter."
                    )
                yield {name: text.strip() for name, text in zip(header, line, strict=True)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise FormatError(f"{str(path)!r} is not a valid table in UTF-8: {error}.") from error


def _widest(kind: type, text: str) -> type:
    """Return int, float or str: the narrowest of them that holds `text` and what came before."""
    if kind is int and _INTEGER.fullmatch(text):
        return int
    return float if kind is not str and _NUMBER.fullmatch(text) else str


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with path.open("rb") as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_BLOCK):
                names = [n.lower() if n.lower() in _FIXED else n for n in batch.schema.names]
                yield from batch.rename_columns(names).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{str(path)!r} is not a valid Parquet file: {error}.") from error


def _table_rows(path: Path) -> int | None:
    if path.suffix.lower() == ".parquet" or not path.is_file():
        return None
    return sum(1 for _ in _lines(path))
