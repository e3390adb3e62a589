"""A folder of class folders in, a `Dataset` out.

Either `root/<class>/...` (then a fifth of each class becomes the test split), or
`root/train/<class>/...` beside `root/test/<class>/...` (`val`, `valid`, `validation` also do).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phpq.data.decode import IMAGE_EXTENSIONS, FileReader
from phpq.data.images import Dataset, LabelledImages, named, split_by_hash
from phpq.errors import DataError

HIDDEN = (".", "__MACOSX")  # prefixes of names that are ignored
TEST_FOLDERS = ("test", "val", "valid", "validation")  # the first one found is used
LAYOUT = "Put the images of each class in a folder of their own: FOLDER/<class>/<image>.jpg"


def open_folder(root: Path, *, seed: int = 0) -> Dataset:
    """Open a folder of class folders, with or without splits; the seed draws a missing split.

    Ids are paths relative to `root`; classes are in natural order.
    """
    if not root.is_dir():
        seen = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"The data folder {str(root)!r} {seen}. {LAYOUT}.")
    name = root.resolve().name or "images"
    splits = _find_splits(root)
    if not splits:
        return split_by_hash(_labelled(name, root, root), seed=seed)
    train, test = (
        _labelled(f"{name}/{split}", root, folder)
        for split, folder in zip(("train", "test"), splits, strict=True)
    )
    return Dataset(name, train=train, test=test)


def natural_key(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key in which "class 2" comes before "Class 10"; the text itself settles ties."""
    parts = re.findall(r"(\d+)|(\D+)", text.casefold())
    return [(0, int(digits), "") if digits else (1, 0, other) for digits, other in parts], text


def _find_splits(root: Path) -> tuple[Path, Path] | None:
    children = {child.name.casefold(): child for child in _subfolders(root)}
    test = next((children[name] for name in TEST_FOLDERS if name in children), None)
    train = children.get("train")
    if train and test:
        return train, test
    alone = len(children) == 1 and (train or test)
    if alone:
        missing = "test/ (or val/)" if train else "train/"
        raise DataError(
            f"The data folder {str(root)!r} has {alone.name + '/'!r} but no {missing}. "
            f"Add the other split, or give {str(alone)!r} itself to have it split."
        )
    return None


def _labelled(name: str, root: Path, folder: Path) -> LabelledImages:
    """List the images of class folders in `folder`; their ids are paths relative to `root`."""
    classes = sorted(_subfolders(folder), key=lambda child: natural_key(child.name))
    if not classes:
        loose = sum(1 for child in folder.iterdir() if _is_image(child.name))
        seen = f"has {loose} images but no class folders" if loose else "has no class folders"
        raise DataError(f"The data folder {str(folder)!r} {seen}. {LAYOUT}.")
    found = {
        child.name: sorted(
            (file.relative_to(root).as_posix() for file in walk_images(child)), key=natural_key
        )
        for child in classes
    }
    empty = [name for name, files in found.items() if not files]
    known = " ".join(sorted(IMAGE_EXTENSIONS))
    if len(empty) == len(found):
        raise DataError(
            f"No images in {str(folder)!r}, only {named(empty, 'folder')}. Known types: {known}."
        )
    if empty:
        raise DataError(
            f"{str(folder)!r} has {named(empty, 'class')} without images. Add images or remove the "
            f"folders. Known types: {known}."
        )
    ids = tuple(file for files in found.values() for file in files)
    labels = np.repeat(np.arange(len(found)), [len(files) for files in found.values()])
    return LabelledImages(name, ids, labels, tuple(found), FileReader(root, ids))


def walk_images(root: Path) -> Iterator[Path]:
    """Yield image files, one folder after the other, in natural order; hidden ones are left out."""
    seen: set[tuple[int, int]] = set()
    for parent, folders, files in os.walk(root, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back to a folder above: do not descend
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        # The folders of a gallery hold no images to index.
        wanted = (f for f in folders if not f.startswith(HIDDEN) and not f.endswith(".lance"))
        folders[:] = sorted(wanted, key=natural_key)
        yield from (
            Path(parent) / name for name in sorted(filter(_is_image, files), key=natural_key)
        )


def _subfolders(folder: Path) -> list[Path]:
    return [c for c in folder.iterdir() if c.is_dir() and not c.name.startswith(HIDDEN)]


def _is_image(file: str) -> bool:
    return not file.startswith(".") and Path(file).suffix.lower() in IMAGE_EXTENSIONS
