"""Sources of a gallery: a folder, a table, a list, rows or a data set in, items out.

Items are yielded one at a time, so that memory does not depend on the number of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from phpq.data import Dataset, LabelledImages, open_dataset
from phpq.data.decode import IMAGE_EXTENSIONS
from phpq.data.folder import TEST_FOLDERS, walk_images
from phpq.data.places import (
    Origin,
    Place,
    RemoteFile,
    TableCell,
    beside,
    folders_in,
    is_uri,
    origin_at,
    suffix_of,
    uri_of,
    walk_uri,
)
from phpq.data.table import FIXED, count_rows, is_table, table_rows
from phpq.errors import DataError
from phpq.gallery.records import Record, column_name

Source = str | Path | Dataset | LabelledImages | Iterable[str | Path | Mapping[str, Any]]
_PREFIXES = ("plumage", "cub200", "dogs120", "folder:", "table:")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One image to be added to a gallery."""

    id: str  # its name in the gallery
    image: Origin  # where its bytes come from: a file, a URI, a cell, or memory
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # with clean column names
    stored: Record | None = None  # the record of this id in the gallery, once looked up

    @property
    def uri(self) -> str | None:
        """Where its file is."""
        return uri_of(self.image)


def open_named(source: Source, home: Path | None = None) -> Source:
    """Open the data set that a text such as "cub200" names; any other source is left as it is.

    `home` is the folder of downloads.
    """
    if isinstance(source, str) and source.startswith(_PREFIXES):
        return source if Path(source).expanduser().exists() else open_dataset(source, home=home)
    return source


def read_items(source: Source) -> Iterator[Item]:
    """Yield the images of a source; a `DataError` if there are none.

    A source is one of these, where places may also be URIs, as in s3://bucket/birds/:
    - a folder: ids are paths relative to it, labels the names of its sub-folders;
    - a .csv, .tsv or .parquet file or a .lance dataset with a column `path` (or `uri`), or `image`
      (bytes of image files; not in text tables), optionally `id` and `label`; others are metadata;
    - a .txt file with one path or URI per line, or one image file;
    - a name that `open_dataset` takes, or a data set;
    - an iterable of paths, or of mappings with `path` or `image`, `id`, `label` and metadata.
    """
    source = open_named(source)
    if isinstance(source, Dataset):
        yield from _labelled(source.train)
        yield from _labelled(source.test)
    elif isinstance(source, LabelledImages):
        yield from _labelled(source)
    elif isinstance(source, str | Path):
        yield from _placed(source)
    else:
        yield from map(_entry, source)


def first_item(source: Source) -> Item:
    """Return the first image of a source; raises as `read_items` does."""
    item = next(read_items(source), None)
    if item is None:
        raise DataError(f"There are no images in {str(source)!r}. Give at least one.")
    return item


def count_items(source: Source) -> int | None:
    """Count the images of a source without opening them; None if that is not possible."""
    if isinstance(source, Dataset):
        return len(source.train) + len(source.test)
    if isinstance(source, str | Path):
        place = source if is_uri(source) else Path(source).expanduser()
        if is_table(place):
            return count_rows(place)
        # A remote folder is not listed twice.
        local = isinstance(place, Path) and place.is_dir()
        return sum(1 for _ in walk_images(Path(place))) if local else None
    return len(source) if isinstance(source, Sequence | LabelledImages) else None


def _placed(source: str | Path) -> Iterator[Item]:
    path = Path(source).expanduser()
    if isinstance(source, str) and is_uri(source):
        yield from _elsewhere(source)
    elif not path.exists():
        raise DataError(
            f"There is no file or folder {str(source)!r}. Give a folder of images, a CSV, TSV or "
            "Parquet table or a Lance dataset with a column `path`, a .txt list, an image, a URI "
            "such as s3://bucket/birds/, or cub200, dogs120 or plumage."
        )
    elif is_table(path):
        yield from _table(path)
    elif path.is_dir():
        children = {child.name.casefold() for child in path.iterdir() if child.is_dir()}
        files = ((file.relative_to(path).as_posix(), file) for file in walk_images(path))
        yield from _items(files, children, str(path))
    else:
        yield Item(Path(source).as_posix(), path)


def _elsewhere(uri: str) -> Iterator[Item]:
    if is_table(uri):
        yield from _table(uri)
    elif suffix_of(uri) in IMAGE_EXTENSIONS and not uri.endswith("/"):
        yield Item(uri, RemoteFile(uri))
    else:
        files = ((name, RemoteFile(file)) for name, file in walk_uri(uri, IMAGE_EXTENSIONS))
        yield from _items(files, folders_in(uri), uri)


def _labelled(images: LabelledImages) -> Iterator[Item]:
    for row, name in enumerate(images.ids):
        label = images.class_names[int(images.labels[row])]
        yield Item(name, images.path(row) or images.read(row), label)


def _items(files: Iterator[tuple[str, Origin]], children: set[str], root: str) -> Iterator[Item]:
    """Label the files of a folder, named relative to it, by its sub-folders, the `children`."""
    split = "train" in children and bool(children & set(TEST_FOLDERS))
    splits = {"train", *TEST_FOLDERS} if split else set()
    empty = True
    for name, origin in files:
        empty = False
        folders = PurePosixPath(name).parts[:-1]
        if folders and folders[0].casefold() in splits:
            folders = folders[1:]
        yield Item(name, origin, folders[0] if folders else None)
    if empty:
        known = " ".join(sorted(IMAGE_EXTENSIONS))
        raise DataError(f"No images in {root!r} or below. Known types: {known}.")


def _table(place: Place) -> Iterator[Item]:
    for number, row in enumerate(table_rows(place)):
        cell = row.get("image")
        named = row.get("path") or row.get("uri")
        if not named and not isinstance(cell, TableCell):
            seen = ", ".join(row) or "none"
            raise DataError(
                f"{str(place)!r} has no path in row {number + 1}. Its columns: {seen}. Needed: "
                "path (or uri), or image with the bytes of image files; optional: id, label; all "
                "others are metadata."
            )
        # Rows of bytes without a name are named by their place in the table.
        name = row.get("id") or named or f"{PurePosixPath(str(place)).name}#{number}"
        image = cell if isinstance(cell, TableCell) else origin_at(beside(place, str(named)))
        yield _entry({**row, "id": name, "image": image})


def _entry(entry: str | Path | Mapping[str, Any]) -> Item:
    """Make an item of a path, a URI or a mapping."""
    if isinstance(entry, str | Path):
        return Item(_posix(entry), origin_at(entry))
    if not isinstance(entry, Mapping):
        raise DataError(
            f"{entry!r} is not an image to add. Give paths, or mappings with the keys path (or "
            "image), id, label and metadata."
        )
    values = {name.strip(): value for name, value in entry.items()}
    fixed = {name.lower(): values.pop(name) for name in list(values) if name.lower() in FIXED}
    image, named = fixed.get("image"), fixed.get("path") or fixed.get("uri")
    if image is None and named:
        image = origin_at(str(named))
    name = fixed.get("id") or named
    if not isinstance(image, Origin) or not name:
        raise DataError(
            f"A row has the keys {', '.join(entry)}; it needs path, or image (a PIL image or the "
            "bytes of a file) and id."
        )
    label = fixed.get("label")
    metadata = {column_name(key): value for key, value in values.items()}
    return Item(_posix(name), image, None if label in (None, "") else str(label), metadata)


def _posix(name: object) -> str:
    return name.as_posix() if isinstance(name, Path) else str(name)
